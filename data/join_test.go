package data_test

import (
	"slices"
	"testing"

	"penstock.example/data"
	"penstock.example/internal/must"
)

// Both parts of a set, joined, are the whole, in whatever order samples are asked for.
func TestJoin(t *testing.T) {
	first := must.Get(data.FromSlices([]float32{0, 1, 2, 3}, []int64{2}, []int{0, 1}))(t)
	second := must.Get(data.FromSlices([]float32{4, 5, 6, 7, 8, 9}, []int64{2}, []int{2, 0, 1}))(t)
	both := data.Join(first, second)
	b := fill(t, both, 4, 0, 2, 1, 0)
	if both.Len() != 5 || !slices.Equal(b.Input.Float32, []float32{8, 9, 0, 1, 4, 5, 2, 3, 0, 1}) || !slices.Equal(b.Target.Int64, []int64{1, 0, 2, 1, 0}) {
		t.Errorf("%d samples, %+v", both.Len(), b)
	}
	var batch data.Batch
	wantError(t, both.Fill(&batch, []int{5}), "sample 5 asked for, there are samples 0 to 4")
}
