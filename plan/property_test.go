package plan_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	_ "penstock.example/internal/draws" // sets the number of draws
	"penstock.example/plan"
)

// TestPartitionIsBest compares with the best of all partitions. Costs are multiples of a power of
// two, so that the search's own sums are exact.
func TestPartitionIsBest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		scale := rapid.SampledFrom([]float64{1, 1 << 30, 1.0 / (1 << 20)}).Draw(t, "scale")
		largest := rapid.SampledFrom([]int{1, 3, 10, 1000}).Draw(t, "largest") // small ones make ties
		wholes := rapid.SliceOfN(rapid.IntRange(0, largest), 1, 10).Draw(t, "wholes")
		costs := make([]float64, len(wholes))
		for i, whole := range wholes {
			costs[i] = float64(whole) * scale
		}
		n := rapid.IntRange(1, len(costs)).Draw(t, "n")

		got, err := plan.Partition(costs, n)
		if err != nil {
			t.Fatal(err)
		}
		if want := bestOfAll(t, costs, n); !slices.Equal(got, want) {
			t.Fatalf("Partition(%v, %d) = %v, want %v", costs, n, got, want)
		}
	})
}

// bestOfAll tries every partition, the lexicographically greatest counts first, and keeps the first
// best.
func bestOfAll(t *rapid.T, costs []float64, n int) []int {
	var best []int
	var bestBottleneck, bestSquares float64
	var try func(prefix []int, layers int)
	try = func(prefix []int, layers int) {
		left := n - len(prefix)
		if left > 0 {
			low := 1
			if left == 1 {
				low = layers
			}
			for count := layers - (left - 1); count >= low; count-- {
				try(append(slices.Clip(prefix), count), layers-count)
			}
			return
		}
		sums, err := plan.Sums(costs, prefix)
		if err != nil {
			t.Fatal(err)
		}
		bottleneck, squares := slices.Max(sums), 0.0
		for _, sum := range sums {
			squares += sum * sum
		}
		if best == nil || bottleneck < bestBottleneck || bottleneck == bestBottleneck && squares < bestSquares {
			best, bestBottleneck, bestSquares = prefix, bottleneck, squares
		}
	}
	try(nil, len(costs))
	return best
}

// bottleneckOf is the cost of the costliest stage.
func bottleneckOf(t *rapid.T, costs []float64, counts []int) float64 {
	sums, err := plan.Sums(costs, counts)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Max(sums)
}

// TestPartitionOfAnyCosts holds what is true beyond the reach of an exhaustive search: the counts
// fit, no balance next to the answer (one layer moved over one cut) is better, and scaling by a
// power of two changes nothing.
func TestPartitionOfAnyCosts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		costs := rapid.SliceOfN(rapid.Float64Range(0, 1e6), 1, 200).Draw(t, "costs")
		n := rapid.IntRange(1, len(costs)).Draw(t, "n")
		counts, err := plan.Partition(costs, n)
		if err != nil {
			t.Fatal(err)
		}
		bottleneck := bottleneckOf(t, costs, counts)
		if len(counts) != n {
			t.Fatalf("%d counts for %d stages", len(counts), n)
		}

		for cut := range n - 1 {
			for _, moved := range []int{-1, 1} {
				neighbour := slices.Clone(counts)
				neighbour[cut] += moved
				neighbour[cut+1] -= moved
				if neighbour[cut] < 1 || neighbour[cut+1] < 1 {
					continue
				}
				if other := bottleneckOf(t, costs, neighbour); other < bottleneck*(1-1e-12) { // the sums here are rounded
					t.Fatalf("%v has bottleneck %v, %v has %v", counts, bottleneck, neighbour, other)
				}
			}
		}

		scaled := make([]float64, len(costs))
		for i, cost := range costs {
			scaled[i] = cost * (1 << 40)
		}
		again, err := plan.Partition(scaled, n)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(again, counts) {
			t.Fatalf("scaled costs are cut into %v, unscaled into %v", again, counts)
		}
	})
}
