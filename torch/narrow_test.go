package torch_test

import (
	"math"
	"slices"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/torch"
)

// Narrow refuses what is not in a tensor, with a graph and without, also where the end is beyond an int64. A
// negative start or dimension counts from the end.
func TestNarrowOfWhatIsNotThere(t *testing.T) {
	for _, grad := range []bool{false, true} {
		c := torchtest.New(t, torch.Options{Grad: grad})
		x := torch.From(c, []float32{0, 1, 2, 3, 4, 5}, 3, 2)
		for _, row := range []struct {
			dim, start, length int64
			want               []float32 // nil is an error
		}{
			{0, 1, 2, []float32{2, 3, 4, 5}},
			{1, 1, 1, []float32{1, 3, 5}},
			{0, 3, 0, []float32{}},
			{0, -1, 1, []float32{4, 5}},
			{-1, 0, 1, []float32{0, 2, 4}},
			{0, 2, 2, nil},
			{0, 4, 0, nil},
			{0, -4, 1, nil},
			{0, 1, -1, nil},
			{2, 0, 1, nil},
			{0, math.MaxInt64, 1, nil},
			{0, 1, math.MaxInt64, nil},
			{0, math.MaxInt64, math.MaxInt64, nil},
			{0, math.MinInt64, 1, nil},
			{0, 1, math.MinInt64, nil},
		} {
			var got []float32
			err := torch.Try(func() { got = torch.Values[float32](c.Detach(c.Narrow(x, row.dim, row.start, row.length))) })
			if (err != nil) != (row.want == nil) || !slices.Equal(got, row.want) {
				t.Errorf("with a graph %v, Narrow(%d, %d, %d) is %v with error %v; want %v", grad, row.dim, row.start, row.length, got, err, row.want)
			}
		}
	}
}
