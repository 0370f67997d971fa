package data

import (
	"cmp"

	"penstock.example/internal/arg"
	"penstock.example/internal/disk"
)

// Synthetic describes learnable samples generated from a seed, for tests and benchmarks. They are
// generated on demand:
//
//   - Classification: an image is its class's pattern plus noise, both uniform in [-1, 1).
//   - Segmentation: an image is a rectangle of one class on a background of another. A pixel is its
//     class's colour plus noise, both uniform in [-1, 1).
//   - NextToken: three times out of four a token is followed by its usual next token, otherwise by any.
type Synthetic struct {
	Task    Task // "" means Classification
	Seed    uint64
	Train   int // samples; 0 means 1024
	Test    int // samples; 0 means 256
	Classes int // 0 means 10

	// 0 means Fashion-MNIST's dimension: 1, 28, 28. For NextToken Width is the length of a sample.
	Channels, Height, Width int
}

// Open returns different samples of the same classes to train and to test with. It returns an error if a
// number is negative.
func (c Synthetic) Open() (train, test Dataset, err error) {
	const name = "data: synthetic"
	c.Train, c.Test, c.Classes = cmp.Or(c.Train, 1024), cmp.Or(c.Test, 256), cmp.Or(c.Classes, 10)
	c.Channels, c.Height, c.Width = cmp.Or(c.Channels, 1), cmp.Or(c.Height, 28), cmp.Or(c.Width, 28)
	if err := cmp.Or(arg.Between(name, "Train", c.Train, 1, disk.MaxSamples),
		arg.Between(name, "Test", c.Test, 1, disk.MaxSamples),
		arg.AtLeast(name, "Classes", c.Classes, 1),
		arg.AtLeast(name, "Channels, Height or Width", min(c.Channels, c.Height, c.Width), 1)); err != nil {
		return nil, nil, err
	}
	info := Info{
		Name:    "synthetic",
		Classes: c.Classes,
		Input:   Spec{Float32, []int64{int64(c.Channels), int64(c.Height), int64(c.Width)}},
		Target:  Spec{Kind: Int64},
		Pad:     make([]float32, c.Channels),
	}
	fillRow := Info.fillClassification
	switch c.Task {
	case "", Classification:
	case Segmentation:
		info.Target.Shape, fillRow = info.Input.Shape[1:], Info.fillSegmentation
	case NextToken:
		spec := Spec{Int64, []int64{int64(c.Width)}}
		info.Input, info.Target, info.Source, info.Pad, fillRow = spec, spec, Int64, nil, Info.fillNextToken
	default:
		return nil, nil, &ConfigError{Of: name, Field: "Task", Value: c.Task,
			Remedy: arg.OneOf(string(c.Task), []string{string(Classification), string(Segmentation),
				string(NextToken)})}
	}
	return &synthetic{info, c.Seed, 0, c.Train, fillRow},
		&synthetic{info, c.Seed, c.Train, c.Test, fillRow}, nil
}

// synthetic has the samples [first, first+length) of a seed.
type synthetic struct {
	info          Info
	seed          uint64
	first, length int
	fillRow       func(info Info, seed uint64, noise *stream, batch *Batch, row int)
}

func (s *synthetic) Len() int   { return s.length }
func (s *synthetic) Info() Info { return s.info }

func (s *synthetic) Fill(batch *Batch, indices []int) error {
	if err := batch.resize(s, indices); err != nil {
		return err
	}
	for row, index := range indices {
		noise := newStream(forSample, s.seed, uint64(s.first+index))
		s.fillRow(s.info, s.seed, &noise, batch, row)
	}
	return nil
}

func (i Info) fillClassification(seed uint64, noise *stream, batch *Batch, row int) {
	label := noise.below(uint64(i.Classes))
	pattern := newStream(forClass, seed, label)
	batch.Target.Int64[row] = int64(label)
	size := i.Input.Size()
	image := batch.Input.Float32[row*size:][:size]
	for i := range image {
		image[i] = pattern.centred() + noise.centred()
	}
}

func (i Info) fillSegmentation(seed uint64, noise *stream, batch *Batch, row int) {
	height, width := int(i.Target.Shape[0]), int(i.Target.Shape[1])
	span := func(length int) (from, to int) {
		from = int(noise.below(uint64(length)))
		return from, from + 1 + int(noise.below(uint64(length-from)))
	}
	top, bottom := span(height)
	left, right := span(width)
	labels := [2]uint64{noise.below(uint64(i.Classes)), noise.below(uint64(i.Classes))} // outside, inside
	colours := [2]stream{newStream(forClass, seed, labels[0]), newStream(forClass, seed, labels[1])}
	mask := batch.Target.Int64[row*height*width:][:height*width]
	image := batch.Input.Float32[row*i.Input.Size():][:i.Input.Size()]
	for ; len(image) > 0; image = image[height*width:] { // channels
		colour := [2]float32{colours[0].centred(), colours[1].centred()}
		for y := range height {
			for x := range width {
				inside := 0
				if y >= top && y < bottom && x >= left && x < right {
					inside = 1
				}
				mask[y*width+x] = int64(labels[inside])
				image[y*width+x] = colour[inside] + noise.centred()
			}
		}
	}
}

func (i Info) fillNextToken(seed uint64, noise *stream, batch *Batch, row int) {
	length := i.Input.Size()
	token := noise.below(uint64(i.Classes))
	for k := range length {
		batch.Input.Int64[row*length+k] = int64(token)
		if noise.below(4) == 0 {
			token = noise.below(uint64(i.Classes))
		} else {
			usual := newStream(forClass, seed, token)
			token = usual.below(uint64(i.Classes))
		}
		batch.Target.Int64[row*length+k] = int64(token)
	}
}
