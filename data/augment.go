package data

import "math"

// Augment configures random changes of training images. They depend only on the seed, the epoch and the
// sample. The zero value changes nothing.
type Augment struct {
	// Crop moves an image by up to Crop pixels in each direction, with a black margin. All moves are
	// equally likely.
	Crop int

	// Flip mirrors half of the images, left to right, after the crop.
	Flip bool

	// Scale crops a random part of each picture in a folder before it is resized, instead of its largest
	// square. The part has from Scale to 1 of the area, and an aspect ratio from 3/4 to 4/3 (Szegedy et
	// al. 2015, "Going Deeper with Convolutions", section 6, with a Scale of 0.08). 0 is none.
	Scale float64
}

// check returns an error if the augmentation cannot be applied to a set.
func (a Augment) check(set Dataset) error {
	info, remedy := set.Info(), ""
	pictures, _ := picturesOf(set, nil)
	switch shape := info.Input.Shape; {
	case a == Augment{}:
		return nil
	case a.Crop < 0 || !(a.Scale >= 0 && a.Scale <= 1):
		remedy = "want a Crop of at least 0, and a Scale from 0 to 1"
	case a.Scale > 0 && pictures == nil:
		remedy = "want a Scale of 0, or a set that is read from pictures"
	case info.Input.Kind != Float32 || len(shape) != 3 || len(info.Pad) != int(shape[0]) ||
		len(info.Target.Shape) == 2:
		remedy = "want images with targets that are no images, or no augmentation"
	default:
		return nil
	}
	return &ConfigError{Field: "Augment", Value: a, Remedy: remedy}
}

// view is a random change of a sample's image.
type view struct {
	down, right int
	flip        bool
	part        *part // of a picture, by Augment.Scale; nil is its largest square in the middle
}

// part has random rectangles. The first that fits into a picture is used, otherwise the largest
// square. area is the share of the picture's area, x and y are positions from 0 to 1.
type part [10]struct{ area, aspect, x, y float64 }

// views draws the changes of samples in an epoch. The result is nil without augmentation.
func (a Augment) views(seed uint64, epoch int, indices []int) []view {
	if a == (Augment{}) {
		return nil
	}
	views := make([]view, len(indices))
	for row, index := range indices {
		s := newStream(forAugment, seed, uint64(epoch), uint64(index))
		v := &views[row]
		if a.Crop > 0 {
			v.down = int(s.below(uint64(2*a.Crop+1))) - a.Crop
			v.right = int(s.below(uint64(2*a.Crop+1))) - a.Crop
		}
		v.flip = a.Flip && s.below(2) == 1
		if a.Scale > 0 {
			v.part = newPart(&s, a.Scale)
		}
	}
	return views
}

func newPart(s *stream, least float64) *part {
	const narrowest = 3.0 / 4
	p := new(part)
	for i := range p {
		p[i].area = least + (1-least)*s.share()
		p[i].aspect = narrowest + (1-narrowest)*s.share()
		if s.below(2) == 1 {
			p[i].aspect = 1 / p[i].aspect
		}
		p[i].x, p[i].y = s.share(), s.share()
	}
	return p
}

// rectangle returns the part of a picture of this size.
func (p *part) rectangle(width, height int) (x, y, w, h int) {
	if p != nil {
		for _, try := range p {
			area := try.area * float64(width) * float64(height)
			w, h = int(math.Round(math.Sqrt(area*try.aspect))), int(math.Round(math.Sqrt(area/try.aspect)))
			if w > 0 && h > 0 && w <= width && h <= height {
				return int(try.x * float64(width-w+1)), int(try.y * float64(height-h+1)), w, h
			}
		}
	}
	side := min(width, height)
	return (width - side) / 2, (height - side) / 2, side, side
}

// picturesOf returns the folder of a set's samples and their indices there, or nil if they have none.
func picturesOf(set Dataset, indices []int) (*folder, []int) {
	for {
		switch s := set.(type) {
		case *folder:
			return s, indices
		case *subset:
			set, indices = s.Dataset, s.wholeIndices(indices)
		default:
			return nil, nil
		}
	}
}

// fillAugmented is Fill with the images changed by views.
func fillAugmented(set Dataset, batch *Batch, indices []int, views []view) error {
	var err error
	if pictures, whole := picturesOf(set, indices); pictures != nil {
		err = pictures.fill(batch, whole, views)
	} else {
		err = set.Fill(batch, indices)
	}
	if err != nil || views == nil {
		return err
	}
	info := set.Info()
	size := info.Input.Size()
	original := make([]float32, size)
	for row, v := range views {
		image := batch.Input.Float32[row*size:][:size]
		copy(original, image)
		shift(image, original, info, v.down, v.right, v.flip)
	}
	return nil
}

// shift copies an image, moves its pixel (down, right) to (0, 0), and then mirrors it if flip is true.
func shift(to, from []float32, info Info, down, right int, flip bool) {
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
