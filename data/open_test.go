package data_test

import (
	"slices"
	"testing"

	"penstock/data"
)

func TestNames(t *testing.T) {
	want := []string{"cifar10", "fashion-mnist", "mnist", "synthetic", "text"}
	if got := data.Names(); !slices.Equal(got, want) {
		t.Errorf("Names() = %v, want %v", got, want)
	}
	_, _, err := data.Open("imagenet", "", data.Options{})
	wantError(t, err, `Data is "imagenet"; want one of cifar10, fashion-mnist, mnist, synthetic, text`)
}

func TestSynthetic(t *testing.T) {
	train, test, err := data.Open("synthetic", "", data.Options{Synthetic: data.Synthetic{
		Seed: 3, Train: 50, Test: 20, Classes: 4, Channels: 3, Height: 5, Width: 6,
	}})
	if err != nil {
		t.Fatal(err)
	}
	if train.Len() != 50 || test.Len() != 20 || train.Info().Classes != 4 || !slices.Equal(train.Info().Input.Shape, []int64{3, 5, 6}) {
		t.Errorf("%d and %d samples of %+v", train.Len(), test.Len(), train.Info())
	}
	one, many := fill(t, train, 7), fill(t, train, 3, 7, 7)
	if !slices.Equal(one.Input.Float32, many.Input.Float32[90:180]) || one.Target.Int64[0] != many.Target.Int64[1] {
		t.Error("sample 7 depends on those next to it")
	}
	if slices.Equal(fill(t, train, 0).Input.Float32, fill(t, test, 0).Input.Float32) {
		t.Error("the first sample to train and to test with are the same")
	}

	other, _, err := data.Synthetic{Seed: 4, Train: 50, Classes: 4, Channels: 3, Height: 5, Width: 6}.Open()
	if err != nil {
		t.Fatal(err)
	}
	if slices.Equal(one.Input.Float32, fill(t, other, 7).Input.Float32) {
		t.Error("another seed makes the same sample")
	}
	_, _, err = data.Synthetic{Classes: -1}.Open()
	wantError(t, err, "data: synthetic: Classes is -1")
}

// The set can be learnt: the mean of a class's images to train with is nearest to its images to
// test with.
func TestSyntheticCanBeLearnt(t *testing.T) {
	train, test, err := data.Synthetic{}.Open()
	if err != nil {
		t.Fatal(err)
	}
	size, classes := train.Info().Input.Size(), train.Info().Classes
	sums, counts := make([][]float64, classes), make([]float64, classes)
	for class := range sums {
		sums[class] = make([]float64, size)
	}
	for i := range train.Len() {
		batch := fill(t, train, i)
		class := batch.Target.Int64[0]
		counts[class]++
		for j, x := range batch.Input.Float32 {
			sums[class][j] += float64(x)
		}
	}
	right := 0
	for i := range test.Len() {
		batch := fill(t, test, i)
		nearest, least := 0, 0.0
		for class := range sums {
			distance := 0.0
			for j, x := range batch.Input.Float32 {
				d := float64(x) - sums[class][j]/counts[class]
				distance += d * d
			}
			if class == 0 || distance < least {
				nearest, least = class, distance
			}
		}
		if int64(nearest) == batch.Target.Int64[0] {
			right++
		}
	}
	if right != test.Len() {
		t.Errorf("%d of %d test images are nearest to the mean of their class", right, test.Len())
	}
}
