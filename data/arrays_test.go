package data_test

import (
	"math"
	"slices"
	"testing"

	"penstock.example/data"
	"penstock.example/internal/must"
)

// What a set is for follows from the kinds and shapes of its slices.
func TestFromSlices(t *testing.T) {
	check := func(name string, set data.Dataset, err error, task data.Task, outputs int, input,
		target []int64) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		info := set.Info()
		if set.Len() != 2 || info.Task() != task || info.Outputs() != outputs ||
			!slices.Equal(info.Input.Shape, input) || !slices.Equal(info.Target.Shape, target) {
			t.Errorf("%s: %d samples, %s, %+v", name, set.Len(), info.Task(), info)
		}
	}
	set, err := data.FromSlices([]float64{1, 2, 3, 4}, []int64{2}, []int{0, 2})
	check("classes", set, err, data.Classification, 3, []int64{2}, nil)
	if b := fill(t, set, 1, 0); !slices.Equal(b.Input.Float32, []float32{3, 4, 1, 2}) ||
		!slices.Equal(b.Target.Int64, []int64{2, 0}) {
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
	if b := fill(t, set, 0, 1); !slices.Equal(b.Input.Float32, []float32{0, 1, 0.2, 0}) ||
		!slices.Equal(set.Info().Pad, []float32{0}) {
		t.Errorf("bytes are %+v", b)
	}
	set, err = data.FromSlices([]uint8{0, 255, 51, 0}, []int64{1, 2, 1}, []int64{1, 0, 4, 1})
	check("masks", set, err, data.Segmentation, 5, []int64{1, 2, 1}, []int64{2, 1})
	set, err = data.FromSlices([]int32{1, 2, 3, 7}, []int64{2}, []int32{2, 3, 7, 1})
	check("tokens", set, err, data.NextToken, 8, []int64{2}, []int64{2})
}

func bytesOf(shape []int64, numbers ...uint8) data.Array {
	return data.Array{Kind: data.Uint8, Shape: shape, Uint8: numbers}
}

func TestImages(t *testing.T) {
	images := bytesOf([]int64{2, 2, 1, 2}, 0, 255, 51, 102, 1, 2, 3, 4)
	set := must.Get(data.NewImages("pair", 7, images, bytesOf([]int64{2}, 6, 0), []float64{0, 0.5},
		[]float64{1, 0.25}))(t)
	info := set.Info()
	if info.Classes != 7 || info.Input.Kind != data.Float32 ||
		!slices.Equal(info.Input.Shape, []int64{2, 1, 2}) || info.Target.Kind != data.Int64 ||
		len(info.Target.Shape) != 0 {
		t.Errorf("Info() = %+v", info)
	}
	if !slices.Equal(info.Pad, []float32{0, -2}) {
		t.Errorf("black is %v, want [0 -2]", info.Pad)
	}

	batch := fill(t, set, 1, 0, 0)
	if batch.Rows != 3 || !slices.Equal(batch.Input.Shape, []int64{3, 2, 1, 2}) ||
		!slices.Equal(batch.Target.Shape, []int64{3}) {
		t.Errorf("%d rows of inputs %v and targets %v", batch.Rows, batch.Input.Shape, batch.Target.Shape)
	}
	if !slices.Equal(batch.Target.Int64, []int64{0, 6, 6}) {
		t.Errorf("targets %v, want [0 6 6]", batch.Target.Int64)
	}
	normal := func(pixel, mean, std float32) float32 { return (pixel/255 - mean) / std }
	want := []float32{normal(0, 0, 1), 1, normal(51, 0.5, 0.25), normal(102, 0.5, 0.25)}
	if got := batch.Input.Float32[4:8]; !slices.Equal(got, want) {
		t.Errorf("sample 0 is %v, want %v", got, want)
	}
	if !slices.Equal(batch.Input.Float32[4:8], batch.Input.Float32[8:]) {
		t.Error("sample 0 asked for twice differs")
	}
}

// A batch that is large enough is filled in place, and one that held another kind is replaced.
func TestFillReuses(t *testing.T) {
	set := must.Get(data.NewText("abcdefghi", 2))(t)
	batch := fill(t, set, 0, 1, 2)
	first := &batch.Input.Int64[0]
	must.Do(t, set.Fill(&batch, []int{2}))
	if batch.Rows != 1 || &batch.Input.Int64[0] != first ||
		!slices.Equal(batch.Input.Int64, []int64{'g', 'h'}) {
		t.Errorf("refilled with one row: %+v", batch)
	}
	images, _, err := data.Synthetic{}.Open()
	must.Do(t, err)
	must.Do(t, images.Fill(&batch, []int{0}))
	if batch.Input.Int64 != nil || len(batch.Input.Float32) != 784 || len(batch.Target.Int64) != 1 {
		t.Errorf("refilled with an image: %d int64 and %d float32 inputs", len(batch.Input.Int64),
			len(batch.Input.Float32))
	}
}

func TestFillRefusesIndices(t *testing.T) {
	text := must.Get(data.NewText("abcdef", 2))(t)
	images := must.Get(data.NewImages("pair", 2, bytesOf([]int64{2, 1, 1, 1}, 1, 2),
		bytesOf([]int64{2}, 0, 1), []float64{0}, []float64{1}))(t)
	synthetic, _, err := data.Synthetic{Train: 2}.Open()
	must.Do(t, err)
	for _, set := range []data.Dataset{text, images, synthetic} {
		wantError(t, set.Fill(&data.Batch{}, []int{0, 2}), set.Info().Name,
			"sample 2 asked for, there are samples 0 to 1")
		wantError(t, set.Fill(&data.Batch{}, []int{-1}), "sample -1")
	}
}

// Both parts of a set, joined, are the whole, in whatever order samples are asked for.
func TestJoin(t *testing.T) {
	first := must.Get(data.FromSlices([]float32{0, 1, 2, 3}, []int64{2}, []int{0, 1}))(t)
	second := must.Get(data.FromSlices([]float32{4, 5, 6, 7, 8, 9}, []int64{2}, []int{2, 0, 1}))(t)
	both := data.Join(first, second)
	b := fill(t, both, 4, 0, 2, 1, 0)
	if both.Len() != 5 || !slices.Equal(b.Input.Float32, []float32{8, 9, 0, 1, 4, 5, 2, 3, 0, 1}) ||
		!slices.Equal(b.Target.Int64, []int64{1, 0, 2, 1, 0}) {
		t.Errorf("%d samples, %+v", both.Len(), b)
	}
	var batch data.Batch
	wantError(t, both.Fill(&batch, []int{5}), "sample 5 asked for, there are samples 0 to 4")
}

func TestFromSlicesRefuses(t *testing.T) {
	numbers, nan := []float32{1, 2, 3, 4}, float32(math.NaN())
	refused := func(numbers []float32, labels ...int) error {
		_, err := data.FromSlices(numbers, []int64{2}, labels)
		return err
	}
	_, tokens := data.FromSlices([]int{1, 2, 3, 4}, []int64{2}, []int{0, 1})
	for want, err := range map[string]error{
		"3 numbers; want whole inputs [2] of 2 numbers": refused(numbers[:3], 0, 1),
		"0 numbers": refused(numbers[:0]),
		"3 targets for 2 inputs [2]; want equally many":                      refused(numbers, 0, 1, 1),
		"all targets are 0; want at least two classes":                       refused(numbers, 0, 0),
		"target 1 has class -1; want 0 to 1":                                 refused(numbers, 1, -1),
		"targets int64 [2]; want a class for each input, or for each pixel":  refused(numbers, 0, 1, 0, 1),
		"inputs are int64 [2] and targets int64 [1]; want int64 targets [t]": tokens,
		"inputs: number 1 of sample 1 is NaN; want finite numbers":           refused([]float32{1, 2, 3, nan}, 0, 1),
	} {
		wantError(t, err, "data: slices: ", want)
	}
}
