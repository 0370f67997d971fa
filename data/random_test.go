package data_test

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"penstock.example/data"
	_ "penstock.example/internal/draws" // sets the number of draws
)

// The orders that runs of the past have seen. A change here breaks every run that is resumed. The
// values come from an implementation of the same definition in Python.
func TestPermutationIsForever(t *testing.T) {
	tests := []struct {
		n     int
		seed  uint64
		epoch int
		want  []int
	}{
		{10, 0, 0, []int{5, 2, 1, 0, 7, 9, 4, 6, 3, 8}},
		{10, 0, 1, []int{9, 8, 1, 6, 3, 4, 7, 0, 2, 5}},
		{10, 1, 0, []int{0, 2, 8, 3, 1, 9, 4, 6, 5, 7}},
		{16, math.MaxUint64, 1_000_000, []int{11, 3, 9, 2, 10, 5, 1, 15, 0, 13, 8, 4, 6, 7, 14, 12}},
	}
	for _, test := range tests {
		if got := data.Permutation(test.n, test.seed, test.epoch); !slices.Equal(got, test.want) {
			t.Errorf("Permutation(%d, %d, %d) = %v, want %v", test.n, test.seed, test.epoch, got, test.want)
		}
	}
}

func TestPermutationIsOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 500).Draw(t, "n")
		order := data.Permutation(n, rapid.Uint64().Draw(t, "seed"), rapid.IntRange(0, math.MaxInt).Draw(t, "epoch"))
		slices.Sort(order)
		for i, index := range order {
			if index != i {
				t.Fatalf("sorted, the permutation has %d at %d", index, i)
			}
		}
		if len(order) != n {
			t.Fatalf("%d indices of %d", len(order), n)
		}
	})
}

// All 24 orders of four come up equally often: 1000 of 24,000 seeds each, with a deviation of 31.
func TestPermutationIsFair(t *testing.T) {
	counts := map[[4]int]int{}
	for seed := range uint64(24_000) {
		counts[[4]int(data.Permutation(4, seed, 0))]++
	}
	if len(counts) != 24 {
		t.Errorf("%d orders of 24 come up", len(counts))
	}
	for order, count := range counts {
		if count < 840 || count > 1160 {
			t.Errorf("%v comes up %d times, want about 1000", order, count)
		}
	}
}
