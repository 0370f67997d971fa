package data

import (
	"fmt"
	"math"
	"slices"
)

// Split divides a data set: the given share of its samples, drawn by seed and at least one, is for
// testing, and the others are to train with. Both keep the set's order. A share of 0 is 0.1. It returns an
// error if share is not between 0 and 1 or there are fewer than two samples.
func Split(set Dataset, share float64, seed uint64) (train, test Dataset, err error) {
	tested, err := testSamples(set.Info().Name, set.Len(), share)
	if err != nil {
		return nil, nil, err
	}
	order := Permutation(set.Len(), seed, 0)
	slices.Sort(order[:tested])
	slices.Sort(order[tested:])
	return &subset{set, order[tested:]}, &subset{set, order[:tested]}, nil
}

// testSamples is how many of a set's samples are for testing: a share, at least one, and never all. A
// share of 0 is the usual one.
func testSamples(name string, samples int, share float64) (int, error) {
	if share == 0 {
		share = defaultHoldout
	}
	switch {
	case !(share > 0 && share < 1):
		return 0, &ConfigError{Of: "data: " + name, Field: "Holdout", Value: share,
			Remedy: "want a share between 0 and 1"}
	case samples < 2:
		return 0, fmt.Errorf("data: %s: %d samples; want at least 2, one to train and one to test with",
			name, samples)
	}
	return min(int(math.Ceil(share*float64(samples))), samples-1), nil
}

// subset is some samples of a set.
type subset struct {
	Dataset
	indices []int
}

func (s *subset) Len() int { return len(s.indices) }

func (s *subset) Fill(batch *Batch, indices []int) error { return s.fillViews(batch, indices, nil) }

// fillViews calls the set's, if it has views.
func (s *subset) fillViews(batch *Batch, indices []int, views []view) error {
	if err := checkIndices(s.Info().Name, s.Len(), indices); err != nil {
		return err
	}
	whole := make([]int, len(indices))
	for i, index := range indices {
		whole[i] = s.indices[index]
	}
	return fillViews(s.Dataset, batch, whole, views)
}

// pictures reports whether the set is read from pictures.
func (s *subset) pictures() bool { return hasPictures(s.Dataset) }

// Join returns the samples of two sets of one kind, such as both parts of Open, one after the other. Info is
// the first's.
func Join(first, second Dataset) Dataset { return &joined{first, second} }

type joined struct{ first, second Dataset }

func (j *joined) Len() int   { return j.first.Len() + j.second.Len() }
func (j *joined) Info() Info { return j.first.Info() }

func (j *joined) Fill(batch *Batch, indices []int) error {
	if err := batch.resize(j, indices); err != nil {
		return err
	}
	info, from := j.Info(), 0
	for _, part := range []Dataset{j.first, j.second} {
		var rows, own []int
		for row, index := range indices {
			if at := index - from; at >= 0 && at < part.Len() {
				rows, own = append(rows, row), append(own, at)
			}
		}
		var some Batch
		if err := part.Fill(&some, own); err != nil {
			return err
		}
		for i, row := range rows {
			copyRow(&batch.Input, row, some.Input, i, info.Input.Size())
			copyRow(&batch.Target, row, some.Target, i, info.Target.Size())
		}
		from += part.Len()
	}
	return nil
}

// copyRow copies a row of size numbers.
func copyRow(to *Array, row int, from Array, index, size int) {
	switch to.Kind {
	case Float32:
		copy(to.Float32[row*size:][:size], from.Float32[index*size:])
	case Int64:
		copy(to.Int64[row*size:][:size], from.Int64[index*size:])
	case Uint8:
		copy(to.Uint8[row*size:][:size], from.Uint8[index*size:])
	}
}
