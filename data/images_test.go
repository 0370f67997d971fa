package data_test

import (
	"slices"
	"testing"

	"penstock.example/data"
	"penstock.example/internal/must"
)

func bytesOf(shape []int64, numbers ...uint8) data.Array {
	return data.Array{Kind: data.Uint8, Shape: shape, Uint8: numbers}
}

func TestImages(t *testing.T) {
	images := bytesOf([]int64{2, 2, 1, 2}, 0, 255, 51, 102, 1, 2, 3, 4)
	set := must.Get(data.NewImages("pair", 7, images, bytesOf([]int64{2}, 6, 0), []float32{0, 0.5}, []float32{1, 0.25}))(t)
	info := set.Info()
	if info.Classes != 7 || info.Input.Kind != data.Float32 || !slices.Equal(info.Input.Shape, []int64{2, 1, 2}) || info.Target.Kind != data.Int64 || len(info.Target.Shape) != 0 {
		t.Errorf("Info() = %+v", info)
	}
	if !slices.Equal(info.Pad, []float32{0, -2}) {
		t.Errorf("black is %v, want [0 -2]", info.Pad)
	}

	batch := fill(t, set, 1, 0, 0)
	if batch.Rows != 3 || !slices.Equal(batch.Input.Shape, []int64{3, 2, 1, 2}) || !slices.Equal(batch.Target.Shape, []int64{3}) {
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
	set := must.Get(data.NewText([]byte("abcdefghi"), 2))(t)
	batch := fill(t, set, 0, 1, 2)
	first := &batch.Input.Int64[0]
	must.Do(t, set.Fill(&batch, []int{2}))
	if batch.Rows != 1 || &batch.Input.Int64[0] != first || !slices.Equal(batch.Input.Int64, []int64{'g', 'h'}) {
		t.Errorf("refilled with one row: %+v", batch)
	}
	images, _, err := data.Synthetic{}.Open()
	if err != nil {
		t.Fatal(err)
	}
	must.Do(t, images.Fill(&batch, []int{0}))
	if batch.Input.Int64 != nil || len(batch.Input.Float32) != 784 || len(batch.Target.Int64) != 1 {
		t.Errorf("refilled with an image: %d int64 and %d float32 inputs", len(batch.Input.Int64), len(batch.Input.Float32))
	}
}

func TestFillRefusesIndices(t *testing.T) {
	text := must.Get(data.NewText([]byte("abcdef"), 2))(t)
	images := must.Get(data.NewImages("pair", 2, bytesOf([]int64{2, 1, 1, 1}, 1, 2), bytesOf([]int64{2}, 0, 1), []float32{0}, []float32{1}))(t)
	synthetic, _, err := data.Synthetic{Train: 2}.Open()
	if err != nil {
		t.Fatal(err)
	}
	for _, set := range []data.Dataset{text, images, synthetic} {
		wantError(t, set.Fill(&data.Batch{}, []int{0, 2}), set.Info().Name, "sample 2 asked for, there are samples 0 to 1")
		wantError(t, set.Fill(&data.Batch{}, []int{-1}), "sample -1")
	}
}
