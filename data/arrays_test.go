package data_test

import (
	"slices"
	"testing"

	"penstock.example/data"
)

// What a set is for follows from the kinds and shapes of its slices.
func TestFromSlices(t *testing.T) {
	check := func(name string, set *data.Arrays, err error, task data.Task, outputs int, input, target []int64) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		info := set.Info()
		if set.Len() != 2 || info.Task() != task || info.Outputs() != outputs || !slices.Equal(info.Input.Shape, input) || !slices.Equal(info.Target.Shape, target) {
			t.Errorf("%s: %d samples, %s, %+v", name, set.Len(), info.Task(), info)
		}
	}
	set, err := data.FromSlices([]float64{1, 2, 3, 4}, []int64{2}, []int{0, 2})
	check("classes", set, err, data.Classification, 3, []int64{2}, nil)
	if b := fill(t, set, 1, 0); !slices.Equal(b.Input.Float32, []float32{3, 4, 1, 2}) || !slices.Equal(b.Target.Int64, []int64{2, 0}) {
		t.Errorf("rows 1 and 0 are %+v", b)
	}
	set, err = data.FromSlices([]float32{1, 2, 3, 4}, []int64{2}, []float64{0.5, -2})
	check("numbers", set, err, data.Regression, 1, []int64{2}, []int64{1})
	if b := fill(t, set, 1); !slices.Equal(b.Target.Float32, []float32{-2}) {
		t.Errorf("row 1 is %+v", b)
	}
	set, err = data.FromSlices([]float32{1, 2, 3, 4}, []int64{2}, []float32{1, 2, 3, 4, 5, 6})
	check("rows of numbers", set, err, data.Regression, 3, []int64{2}, []int64{3})
	set, err = data.FromSlices([]uint8{0, 255, 51, 0}, []int64{1, 2, 1}, []uint8{1, 0})
	check("bytes", set, err, data.Classification, 2, []int64{1, 2, 1}, nil)
	if b := fill(t, set, 0, 1); !slices.Equal(b.Input.Float32, []float32{0, 1, 0.2, 0}) || !slices.Equal(set.Info().Pad, []float32{0}) {
		t.Errorf("bytes are %+v", b)
	}
	set, err = data.FromSlices([]uint8{0, 255, 51, 0}, []int64{1, 2, 1}, []int64{1, 0, 4, 1})
	check("masks", set, err, data.Segmentation, 5, []int64{1, 2, 1}, []int64{2, 1})
	set, err = data.FromSlices([]int32{1, 2, 3, 7}, []int64{2}, []int32{2, 3, 7, 1})
	check("tokens", set, err, data.NextToken, 8, []int64{2}, []int64{2})
}

func TestFromSlicesRefuses(t *testing.T) {
	refused := func(err error, parts ...string) {
		t.Helper()
		wantError(t, err, append(parts, "data: slices: ")...)
	}
	_, err := data.FromSlices([]float32{1, 2, 3}, []int64{2}, []int{0, 1})
	refused(err, "3 numbers; want a multiple, above 0, of the 2 of an input [2]")
	_, err = data.FromSlices([]float32{}, []int64{2}, []int{})
	refused(err, "0 numbers")
	_, err = data.FromSlices([]float32{1}, []int64{0}, []int{1})
	refused(err, "1 numbers")
	_, err = data.FromSlices([]float32{1, 2, 3, 4}, []int64{2}, []int{0, 1, 1})
	refused(err, "3 targets for 2 inputs [2]; want a multiple, above 0")
	_, err = data.FromSlices([]float32{1, 2, 3, 4}, []int64{2}, []int{0, 0})
	refused(err, "all targets are 0; want at least two classes")
	_, err = data.FromSlices([]float32{1, 2, 3, 4}, []int64{2}, []int{1, -1})
	refused(err, "target 1 has class -1; want 0 to 1")
	_, err = data.FromSlices([]float32{1, 2, 3, 4}, []int64{2}, []int{0, 1, 0, 1})
	refused(err, "targets are int64 [2] for inputs [2]; want a class for each input, or for each pixel")
	_, err = data.FromSlices([]int{1, 2, 3, 4}, []int64{2}, []int{0, 1})
	refused(err, "inputs are int64 [2] and targets int64 [1]; want tokens [t] with the tokens that follow")
	nan := float32(0)
	_, err = data.FromSlices([]float32{1, 2, 3, nan / nan}, []int64{2}, []int{0, 1})
	refused(err, "inputs: number 1 of sample 1 is NaN; want finite numbers")
	_, err = data.NewArrays("mine", 2, data.Array{Kind: data.Float32, Shape: []int64{2}, Float32: []float32{1}}, data.Array{Kind: data.Int64, Shape: []int64{2}, Int64: []int64{0, 1}})
	wantError(t, err, "data: mine: inputs are 1 numbers; want 2 for the shape [2]")
	_, err = data.NewArrays("mine", 2, data.Array{Kind: data.Float32, Shape: []int64{2}, Float32: []float32{1, 2}}, data.Array{Kind: data.Uint8, Shape: []int64{2}, Uint8: []uint8{0, 1}})
	wantError(t, err, "targets are uint8; want int64")
	_, err = data.NewArrays("mine", 2, data.Array{Kind: data.Float32, Shape: []int64{2}, Float32: []float32{1, 2}}, data.Array{Kind: data.Int64, Shape: []int64{2}, Int64: []int64{0, 2}})
	wantError(t, err, "target 1 has class 2; want 0 to 1")
}
