package data

import (
	"fmt"

	"penstock/internal/arg"
)

// Synthetic describes images made from a seed, for tests and benchmarks. A sample is its class's
// pattern plus as much noise, each uniform in [-1, 1), so that a network can learn the set. The
// samples are made when they are asked for and take no memory before.
type Synthetic struct {
	Seed    uint64
	Train   int // samples; 0 means 1024
	Test    int // samples; 0 means 256
	Classes int // 0 means 10

	// A dimension of 0 means that of Fashion-MNIST's images: 1, 28, 28.
	Channels, Height, Width int
}

// Open returns a set to train with and one to test with: other samples of the same classes. It
// returns an error if a number is negative.
func (c Synthetic) Open() (train, test Dataset, err error) {
	fields := []struct {
		name   string
		value  *int
		normal int
	}{
		{"Train", &c.Train, 1024}, {"Test", &c.Test, 256}, {"Classes", &c.Classes, 10},
		{"Channels", &c.Channels, 1}, {"Height", &c.Height, 28}, {"Width", &c.Width, 28},
	}
	for _, field := range fields {
		if *field.value < 0 {
			return nil, nil, &ConfigError{Of: "data: synthetic", Field: field.name, Value: *field.value,
				Remedy: fmt.Sprintf("want at least 1, or 0 for %d", field.normal)}
		}
		if *field.value == 0 {
			*field.value = field.normal
		}
	}
	info := Info{
		Name:    "synthetic",
		Classes: c.Classes,
		Input:   Spec{Float32, []int64{int64(c.Channels), int64(c.Height), int64(c.Width)}},
		Target:  Spec{Kind: Int64},
		Pad:     make([]float32, c.Channels),
	}
	return &synthetic{info, c.Seed, 0, c.Train}, &synthetic{info, c.Seed, c.Train, c.Test}, nil
}

// synthetic is the samples [first, first+length) of those that a seed makes.
type synthetic struct {
	info          Info
	seed          uint64
	first, length int
}

func (s *synthetic) Len() int   { return s.length }
func (s *synthetic) Info() Info { return s.info }

func (s *synthetic) Fill(batch *Batch, indices []int) error {
	if err := arg.Given(batch, "data: Fill: the batch", "what is to be filled"); err != nil {
		return err
	}
	if err := checkIndices(s.info.Name, s.length, indices); err != nil {
		return err
	}
	batch.reset(len(indices), s.info)
	size := s.info.Input.Size()
	for row, index := range indices {
		noise := newStream(forSample, s.seed, uint64(s.first+index))
		label := noise.below(uint64(s.info.Classes))
		pattern := newStream(forClass, s.seed, label)
		batch.Target.Int64[row] = int64(label)
		image := batch.Input.Float32[row*size:][:size]
		for i := range image {
			image[i] = pattern.centred() + noise.centred()
		}
	}
	return nil
}
