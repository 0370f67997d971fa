package data_test

import (
	"fmt"
	"slices"
	"testing"

	"penstock.example/data"
	"penstock.example/internal/must"
)

// numbered returns n equal images of one 3 x 4 channel whose pixels are 1 to 12, black being 0.
func numbered(t *testing.T, n int) data.Dataset {
	t.Helper()
	images := data.Array{Kind: data.Uint8, Shape: []int64{int64(n), 1, 3, 4}}
	for range n {
		for pixel := range uint8(12) {
			images.Uint8 = append(images.Uint8, pixel+1)
		}
	}
	labels := data.Array{Kind: data.Uint8, Shape: []int64{int64(n)}, Uint8: make([]uint8, n)}
	set := must.Get(data.NewImages("numbered", 2, images, labels, []float32{0}, []float32{1.0 / 255}))(t)
	return set
}

// epochOf returns every image of an epoch, in the data set's order.
func epochOf(t *testing.T, set data.Dataset, c data.LoaderConfig) [][]float32 {
	t.Helper()
	size := set.Info().Input.Size()
	var images [][]float32
	for _, batch := range deliver(t, set, c, -1) {
		images = slices.AppendSeq(images, slices.Chunk(batch.Input.Float32, size))
	}
	return images
}

func rounded(image []float32) string {
	var pixels []int
	for _, x := range image {
		pixels = append(pixels, int(x+0.5))
	}
	return fmt.Sprint(pixels)
}

func TestFlip(t *testing.T) {
	const same, mirrored = "[1 2 3 4 5 6 7 8 9 10 11 12]", "[4 3 2 1 8 7 6 5 12 11 10 9]"
	counts := map[string]int{}
	for _, image := range epochOf(t, numbered(t, 1000), data.LoaderConfig{BatchSize: 100, Augment: data.Augment{Flip: true}}) {
		counts[rounded(image)]++
	}
	if len(counts) != 2 || counts[same] < 420 || counts[mirrored] < 420 { // 500 each, with a deviation of 16
		t.Errorf("images come out as %v", counts)
	}
}

func TestCrop(t *testing.T) {
	counts := map[string]int{}
	for _, image := range epochOf(t, numbered(t, 900), data.LoaderConfig{BatchSize: 100, Augment: data.Augment{Crop: 1}}) {
		counts[rounded(image)]++
	}
	// By one pixel either way and each direction: nine images, some of which are drawn here.
	for _, want := range []string{
		"[1 2 3 4 5 6 7 8 9 10 11 12]",
		"[0 0 0 0 0 1 2 3 0 5 6 7]",    // down and right
		"[6 7 8 0 10 11 12 0 0 0 0 0]", // up and left
		"[2 3 4 0 6 7 8 0 10 11 12 0]", // left
	} {
		if counts[want] < 60 { // 100 each, with a deviation of 9
			t.Errorf("%s comes out %d times of 900", want, counts[want])
		}
	}
	if len(counts) != 9 {
		t.Errorf("%d different images come out, want 9: %v", len(counts), counts)
	}
}

// An image is mirrored after it was cropped: one that is both is the mirror image of what the crop
// alone, of the same seed, makes of it.
func TestFlipComesAfterCrop(t *testing.T) {
	set := numbered(t, 200)
	cropped := epochOf(t, set, data.LoaderConfig{BatchSize: 50, Seed: 3, Augment: data.Augment{Crop: 1}})
	both := epochOf(t, set, data.LoaderConfig{BatchSize: 50, Seed: 3, Augment: data.Augment{Crop: 1, Flip: true}})
	flipped := 0
	for i, image := range both {
		mirrored := slices.Clone(cropped[i])
		for row := range slices.Chunk(mirrored, 4) {
			slices.Reverse(row)
		}
		switch rounded(image) {
		case rounded(cropped[i]):
		case rounded(mirrored):
			flipped++
		default:
			t.Fatalf("image %d: cropped %s, cropped and flipped %s", i, rounded(cropped[i]), rounded(image))
		}
	}
	if flipped < 60 { // 100, with a deviation of 7
		t.Errorf("%d of 200 images are mirrored", flipped)
	}
}

// A crop wider than the image leaves black, and nothing is read outside the image.
func TestCropWiderThanTheImage(t *testing.T) {
	for _, image := range epochOf(t, numbered(t, 200), data.LoaderConfig{BatchSize: 7, Augment: data.Augment{Crop: 9, Flip: true}}) {
		for _, x := range image {
			if x < 0 || x > 12.5 {
				t.Fatalf("pixel %v", x)
			}
		}
	}
}

// What becomes of a sample depends on the seed, the epoch and the sample alone: not on its batch or
// on prefetching.
func TestAugmentIsDerived(t *testing.T) {
	set := numbered(t, 64)
	augment := data.Augment{Crop: 1, Flip: true}
	want := epochOf(t, set, data.LoaderConfig{BatchSize: 64, Seed: 5, Augment: augment})
	for _, c := range []data.LoaderConfig{
		{BatchSize: 5, Seed: 5, Augment: augment},
		{BatchSize: 7, Seed: 5, Augment: augment, Prefetch: 3},
	} {
		if got := epochOf(t, set, c); !slices.EqualFunc(got, want, slices.Equal) {
			t.Errorf("%+v: the images differ from those in one batch", c)
		}
	}
	for _, c := range []data.LoaderConfig{
		{BatchSize: 64, Seed: 6, Augment: augment},
		{BatchSize: 64, Seed: 5, Augment: augment, Start: data.Position{Epoch: 1}},
	} {
		if got := epochOf(t, set, c); slices.EqualFunc(got, want, slices.Equal) {
			t.Errorf("%+v: the images are the same", c)
		}
	}
	again := epochOf(t, set, data.LoaderConfig{BatchSize: 64})
	if rounded(again[0]) != "[1 2 3 4 5 6 7 8 9 10 11 12]" {
		t.Errorf("augmentation changed the data set itself: %v", again[0])
	}
}

func TestAugmentRefuses(t *testing.T) {
	text, err := data.NewText([]byte("abcdef"), 2)
	if err != nil {
		t.Fatal(err)
	}
	_, err = data.NewLoader(text, data.LoaderConfig{BatchSize: 1, Augment: data.Augment{Flip: true}})
	wantError(t, err, "data: text: Augment is {0 true 0}: inputs are int64 [2]", "want images, float32")
	_, err = data.NewLoader(numbered(t, 1), data.LoaderConfig{BatchSize: 1, Augment: data.Augment{Crop: -1}})
	wantError(t, err, "data: numbered: Augment is {-1 false 0}: Crop is negative")
}
