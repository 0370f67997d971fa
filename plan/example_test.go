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
