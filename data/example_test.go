package data_test

import (
	"fmt"
	"log"

	"penstock.example/data"
)

// Two images of two grey pixels, with a class each.
func ExampleFromSlices() {
	set, err := data.FromSlices([]uint8{0, 255, 255, 0}, []int64{1, 1, 2}, []int{0, 1})
	if err != nil {
		log.Fatal(err)
	}
	var batch data.Batch
	if err := set.Fill(&batch, []int{0, 1}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(batch.Input.Shape, batch.Input.Float32, batch.Target.Int64)
	// Output: [2 1 1 2] [0 1 1 0] [0 1]
}
