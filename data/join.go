package data

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Split divides a data set into samples to train with and a share of samples to test with, at least one.
// The test samples are drawn by seed, and both parts keep the set's order. A share of 0 is 0.1. Split
// returns an error if share is not between 0 and 1 or the set has fewer than two samples.
func Split(set Dataset, share float64, seed uint64) (train, test Dataset, err error) {
	train, test, err = split(set, share, seed, false)
	return train, test, named(set.Info().Name, err)
}

// split is Split. With textEnd, the last samples of a text without prompts are used for testing.
func split(set Dataset, share float64, seed uint64, textEnd bool) (train, test Dataset, err error) {
	n := set.Len()
	switch share = cmp.Or(share, 0.1); {
	case !(share > 0 && share < 1):
		return nil, nil, &ConfigError{Field: "Holdout", Value: share, Remedy: "want a share between 0 and 1"}
	case n < 2:
		return nil, nil, fmt.Errorf("%d samples; want at least 2, one to train and one to test with", n)
	}
	tested := min(int(math.Ceil(share*float64(n))), n-1)
	if t, ok := set.(*textSet); ok && textEnd && !t.prompts {
		training, testing := *t, *t
		training.length, testing.first, testing.length = n-tested, n-tested, tested
		return &training, &testing, nil
	}
	order := Permutation(n, seed, 0)
	slices.Sort(order[:tested])
	slices.Sort(order[tested:])
	return &subset{set, order[tested:]}, &subset{set, order[:tested]}, nil
}

type subset struct {
	Dataset
	indices []int
}

func (s *subset) Len() int { return len(s.indices) }

func (s *subset) Fill(batch *Batch, indices []int) error {
	if err := checkIndices(s.Info().Name, s.Len(), indices); err != nil {
		return err
	}
	return s.Dataset.Fill(batch, s.wholeIndices(indices))
}

// wholeIndices returns the indices of samples in the whole set.
func (s *subset) wholeIndices(indices []int) []int {
	whole := make([]int, len(indices))
	for i, index := range indices {
		whole[i] = s.indices[index]
	}
	return whole
}

// Join concatenates two sets of the same kind, such as both parts of Open. Info is the first's.
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
