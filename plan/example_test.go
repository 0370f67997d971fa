package plan_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"penstock.example/plan"
	"penstock.example/remat"
	"penstock.example/schedule"
)

// Four layers on two devices with a limit: the plan recomputes where that saves enough bytes. Under a
// limit that no plan keeps, the error says which would do.
func ExampleSolve() {
	chain := remat.Chain{Input: 10}
	for i := range 4 {
		chain.Layers = append(chain.Layers, remat.Layer{Name: fmt.Sprint("l", i),
			Forward: 1, ForwardNoGrad: 1, Backward: 2, Output: 10, Saved: 30, Gradient: 10})
	}
	problem := plan.FromChain(chain, []int{2, 2}, []int{0, 1}, 4) // stages of 2 layers, 4 micro-batches
	problem.Schedule = schedule.OneFOneB
	for i := range problem.Stages {
		problem.Stages[i].Policy = plan.Optimal
	}
	for _, limit := range []int64{0, 120, 20} {
		for i := range problem.Devices {
			problem.Devices[i].Limit = limit
		}
		best, err := plan.Solve(context.Background(), problem)
		var short *plan.MemoryError
		switch {
		case errors.As(err, &short):
			for _, s := range short.Stages {
				fmt.Printf("limit %d: %s needs at least %d\n", limit, s.Device, s.Least)
			}
			continue
		case err != nil:
			log.Fatal(err)
		}
		for _, d := range best.Devices {
			fmt.Printf("limit %d: %s takes %.0f us, at most %d bytes\n", limit, d.Name, d.Time, d.Peak)
		}
	}
	// Output:
	// limit 0: device 0 takes 24 us, at most 180 bytes
	// limit 0: device 1 takes 24 us, at most 100 bytes
	// limit 120: device 0 takes 31 us, at most 110 bytes
	// limit 120: device 1 takes 24 us, at most 100 bytes
	// limit 20: device 0 needs at least 100
	// limit 20: device 1 needs at least 70
}

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
