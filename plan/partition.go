package plan

import (
	"cmp"
	"fmt"
	"math"

	"penstock.example/internal/arg"
)

// Partition returns how many layers each of n stages takes, in order: n counts of at least one, which
// add up to len(costs). A stage's cost is the sum of its layers' costs. Of all such partitions
// Partition returns
//
//  1. one with the least bottleneck,
//  2. among those, one with the least sum of squared stage costs,
//  3. among those, the one with the lexicographically greatest counts: the first stage takes as
//     many layers as it can, then the second, and so on. Fifteen equal layers over eight stages are
//     2 2 2 2 2 2 2 1.
//
// Sums are taken over integers, so that rounding decides nothing and equal costs are equal. Costs
// are first rounded to multiples of 2^(e+b-62), where the largest cost is below 2^e and len(costs)
// below 2^b. Whole numbers are exact while the largest times the number of layers is below 2^60.
// For 10,000 layers a cost is rounded by at most 2^-48 of the largest.
//
// Partition returns an error if n is below one or above len(costs), or if a cost is negative,
// infinite or not a number. It takes O(n·L·log L) time and O(n·L) memory for L layers. It is safe
// for concurrent use, as are all functions of the package.
func Partition(costs []float64, n int) ([]int, error) {
	if err := cmp.Or(checkStages(n, len(costs)), checkCosts(costs)); err != nil {
		return nil, err
	}
	sums := prefixSums(costs)
	return evenest(sums, n, leastBottleneck(sums, n)), nil
}

// Sums returns the cost of each stage under a balance, a list of layer counts such as Partition
// returns. It returns an error if a count is below one, if the counts do not add up to len(costs),
// if a cost is negative, infinite or not a number, or if a sum is infinite.
func Sums(costs []float64, balance []int) ([]float64, error) {
	if err := cmp.Or(checkCosts(costs), arg.Balance("plan", balance, len(costs))); err != nil {
		return nil, err
	}
	sums := make([]float64, len(balance))
	start := 0
	for stage, count := range balance {
		for _, cost := range costs[start : start+count] {
			sums[stage] += cost
		}
		if math.IsInf(sums[stage], 0) {
			return nil, fmt.Errorf("plan: the costs of stage %d of %v add up to more than a float64 holds: "+
				"give them in a larger unit", stage, balance)
		}
		start += count
	}
	return sums, nil
}

func checkCosts(costs []float64) error {
	for i, cost := range costs {
		if !(cost >= 0) || math.IsInf(cost, 0) {
			return arg.Finite("plan", fmt.Sprintf("the cost of layer %d", i), cost)
		}
	}
	return nil
}
