package schedule_test

import (
	"fmt"

	"penstock.example/schedule"
)

func ExampleOneFOneB() {
	p, err := schedule.OneFOneB(schedule.Config{Stages: 3, MicroBatches: 4})
	if err != nil {
		fmt.Println(err)
		return
	}
	// A stage receives an activation before it sends a gradient where the two workers would
	// otherwise wait for each other on links that meet.
	fmt.Print(p)
	// Output:
	// program whole stages=3 micro-batches=4
	// worker 0: 0F0 0F0>1 0F1 0F1>1 0F2 0F2>1 1>0B0 0B0 0F3 0F3>1 1>0B1 0B1 1>0B2 0B2 1>0B3 0B3
	// worker 1: 0>1F0 1F0 1F0>2 0>1F1 1F1 1F1>2 2>1B0 1B0 0>1F2 1B0>0 1F2 1F2>2 2>1B1 1B1 0>1F3 1B1>0 1F3 1F3>2 2>1B2 1B2 1B2>0 2>1B3 1B3 1B3>0
	// worker 2: 1>2F0 2F0 2B0 1>2F1 2B0>1 2F1 2B1 1>2F2 2B1>1 2F2 2B2 1>2F3 2B2>1 2F3 2B3 2B3>1
}
