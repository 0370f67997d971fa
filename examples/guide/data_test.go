package guide_test

import (
	"fmt"

	"penstock/data"
)

func Example_dataOfOnesOwn() {
	set, err := data.FromSlices([]float32{0, 0, 0, 1, 1, 0, 1, 1}, []int64{2}, []int{0, 1, 1, 0}) // four inputs of two numbers
	check(err)
	training, testing, err := data.Split(set, 0.25, 1) // a quarter to test with, drawn by a seed
	check(err)
	fmt.Println(set.Info().Task(), set.Info().Classes, training.Len(), testing.Len())

	// Output:
	// classification 2 3 1
}
