package pipe

import (
	"reflect"
	"testing"
)

func TestSplit(t *testing.T) {
	for _, row := range []struct {
		n      int64
		chunks int
		want   []rows
	}{
		{8, 4, []rows{{0, 2}, {2, 2}, {4, 2}, {6, 2}}},
		// torch.chunk gives 2, 2, 1: three where four were asked for
		{5, 4, []rows{{0, 2}, {2, 1}, {3, 1}, {4, 1}}},
		{9, 4, []rows{{0, 3}, {3, 2}, {5, 2}, {7, 2}}},
		{2, 4, []rows{{0, 1}, {1, 1}}},
		{1, 1, []rows{{0, 1}}},
		{0, 4, []rows{{0, 0}}},
	} {
		if got := split(row.n, row.chunks); !reflect.DeepEqual(got, row.want) {
			t.Errorf("%d rows in %d: got %v, want %v", row.n, row.chunks, got, row.want)
		}
	}
}
