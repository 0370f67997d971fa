package data

import (
	"fmt"
	"math"
	"slices"
)

// Split parts a data set: the given share of its samples, drawn by seed and at least one, is for
// testing, and the others are to train with. Both keep the set's order. A share of 0 is 0.1. It returns an error if share
// is not between 0 and 1 or there are fewer than two samples.
func Split(set Dataset, share float64, seed uint64) (train, test Dataset, err error) {
	tested, err := heldOut(set.Info().Name, set.Len(), share)
	if err != nil {
		return nil, nil, err
	}
	order := Permutation(set.Len(), seed, 0)
	slices.Sort(order[:tested])
	slices.Sort(order[tested:])
	return &subset{set, order[tested:]}, &subset{set, order[:tested]}, nil
}

// heldOut is how many of a set's samples are for testing: a share, at least one, and never all. A
// share of 0 is the usual one.
func heldOut(name string, samples int, share float64) (int, error) {
	if share == 0 {
		share = defaultHoldout
	}
	switch {
	case !(share > 0 && share < 1):
		return 0, &ConfigError{Of: "data: " + name, Field: "Holdout", Value: share, Remedy: "want a share between 0 and 1"}
	case samples < 2:
		return 0, fmt.Errorf("data: %s: %d samples; want at least 2, one to train and one to test with", name, samples)
	}
	return min(int(math.Ceil(share*float64(samples))), samples-1), nil
}

// subset is some samples of a set.
type subset struct {
	Dataset
	indices []int
}

func (s *subset) Len() int { return len(s.indices) }

func (s *subset) Fill(batch *Batch, indices []int) error {
	return s.fillViews(batch, indices, nil)
}

// fillViews is that of the set, if it has views.
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

// pictures says whether the set is read from pictures, of which it can take a part.
func (s *subset) pictures() bool { return hasPictures(s.Dataset) }
