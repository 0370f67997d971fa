package guide_test

import (
	"fmt"

	"penstock.example/balance"
)

func Example_partition() {
	costs := []float64{1, 1, 1, 3, 1, 1} // of each layer, in whatever unit
	counts, err := balance.Partition(costs, 3)
	check(err)
	sums, err := balance.Sums(costs, counts)
	check(err)
	fmt.Println(counts, "cost", sums)
	// Output:
	// [3 1 2] cost [3 3 2]
}
