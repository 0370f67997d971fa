package data

import "fmt"

// Augment changes training images at random, the same way for the same seed, epoch and sample. The
// zero value changes nothing.
type Augment struct {
	// Crop moves an image by up to so many pixels either way and each direction, all moves equally
	// likely: a crop of the image's own size from the image with a black margin of that width.
	Crop int

	// Flip mirrors every other image, left to right, after the crop.
	Flip bool
}

// check returns an error if the augmentation cannot be applied to what info describes.
func (a Augment) check(of string, info Info) error {
	if a.Crop < 0 {
		return &ConfigError{Of: of, Field: "Augment", Value: a, Problem: "Crop is negative", Remedy: "want a Crop of at least 0"}
	}
	if a == (Augment{}) {
		return nil
	}
	if shape := info.Input.Shape; info.Input.Kind != Float32 || len(shape) != 3 || int64(len(info.Pad)) != shape[0] {
		return &ConfigError{Of: of, Field: "Augment", Value: a,
			Problem: fmt.Sprintf("inputs are %v %v with pad %v", info.Input.Kind, shape, info.Pad),
			Remedy:  "want images, float32 [channels height width] with a pad per channel, or no augmentation"}
	}
	return nil
}

// apply augments a batch of the samples with these indices.
func (a Augment) apply(batch *Batch, info Info, seed uint64, epoch int, indices []int) {
	if a == (Augment{}) {
		return
	}
	size := info.Input.Size()
	original := make([]float32, size)
	for row, index := range indices {
		s := newStream(forAugment, seed, uint64(epoch), uint64(index))
		var down, right int
		if a.Crop > 0 {
			down = int(s.below(uint64(2*a.Crop+1))) - a.Crop
			right = int(s.below(uint64(2*a.Crop+1))) - a.Crop
		}
		flip := a.Flip && s.below(2) == 1
		image := batch.Input.Float32[row*size:][:size]
		copy(original, image)
		move(image, original, info, down, right, flip)
	}
}

// move writes to `to` what is in `from`, moved so that its pixel (down, right) comes to (0, 0), and
// then mirrored if flip.
func move(to, from []float32, info Info, down, right int, flip bool) {
	height, width := int(info.Input.Shape[1]), int(info.Input.Shape[2])
	for c, pad := range info.Pad {
		from, to := from[c*height*width:][:height*width], to[c*height*width:][:height*width]
		for y := range height {
			for x := range width {
				column := x
				if flip {
					column = width - 1 - x
				}
				value := pad
				if v, u := y+down, column+right; v >= 0 && v < height && u >= 0 && u < width {
					value = from[v*width+u]
				}
				to[y*width+x] = value
			}
		}
	}
}
