package remat_test

import (
	"context"
	"fmt"
	"log"

	"penstock.example/remat"
	"penstock.example/remat/solver"
)

// The best plan beside the usual strategies, each at the memory that the strategy takes.
func ExampleCompare() {
	chain := remat.Chain{Input: 1, InputGradient: 1}
	for i := range 9 {
		chain.Layers = append(chain.Layers, remat.Layer{Name: fmt.Sprint("l", i),
			Forward: 1, ForwardNoGrad: 1, Backward: 2, Output: 1, Saved: 4, Gradient: 1})
	}
	list, err := remat.Baselines(chain)
	if err != nil {
		log.Fatal(err)
	}
	compared, err := remat.Compare(context.Background(), list, func(ctx context.Context, limit int64) (remat.Plan, error) {
		return solver.Solve(ctx, chain, limit, solver.Options{})
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, c := range compared {
		fmt.Printf("%-10s %2d bytes: %v us, at best %v\n", c.Strategy, c.Peak, c.Time, c.Optimum.Time)
	}
	// Output:
	// all         8 bytes: 72 us, at best 63
	// revolve     9 bytes: 44 us, at best 44
	// revolve    10 bytes: 40 us, at best 40
	// revolve    11 bytes: 39 us, at best 38
	// revolve    12 bytes: 38 us, at best 36
	// revolve    13 bytes: 37 us, at best 35
	// sequential 17 bytes: 33 us, at best 33
	// sequential 24 bytes: 31 us, at best 31
	// none       39 bytes: 27 us, at best 27
}
