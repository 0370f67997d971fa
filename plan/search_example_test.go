package plan_test

import (
	"context"
	"fmt"
	"log"

	"penstock.example/plan"
	"penstock.example/remat"
)

// Which cut, schedule and number of micro-batches is best for six layers on two devices, one of which
// is half as fast?
func ExampleSearch() {
	chain := remat.Chain{Input: 10}
	for i := range 6 {
		chain.Layers = append(chain.Layers, remat.Layer{Name: fmt.Sprint("l", i),
			Forward: 100, ForwardNoGrad: 100, Backward: 200, Output: 10, Saved: 30, Gradient: 10})
	}
	found, err := plan.Search(context.Background(),
		plan.Profile{Measured: []plan.Costs{{Rows: 8, Threads: 1, Chain: chain}}},
		plan.Machine{Devices: []plan.Device{{Name: "fast"}, {Name: "slow", Speed: 0.5}}},
		plan.Options{Batch: 64})
	if err != nil {
		log.Fatal(err)
	}
	best := found.Best
	fmt.Println(best.Schedule, best.Balance, "layers on", best.Devices)
	fmt.Println(best.MicroBatches, "micro-batches,", best.Step, "a step; proved best:", found.Proved)
	// Output:
	// zb-v [2 1 1 2] layers on [fast slow]
	// 8 micro-batches, 9.8ms a step; proved best: true
}
