package solver_test

import (
	"context"
	"fmt"

	"penstock.example/remat"

	"penstock.example/remat/solver"
)

// alike is a chain of layers that are all the same: 10 µs forward, 20 µs backward, outputs of 4 MB
// with which 12 MB are saved.
func alike(layers int) remat.Chain {
	const mb = 1e6
	c := remat.Chain{Input: 4 * mb, InputGradient: 4 * mb}
	for range layers {
		c.Layers = append(c.Layers, remat.Layer{Forward: 10, ForwardNoGrad: 10, Backward: 20, Output: 4 * mb, Saved: 12 * mb, Gradient: 4 * mb})
	}
	return c
}

// What a third less memory costs: five of twelve forwards again.
func ExampleSolve() {
	c := alike(12)
	greatest, err := solver.Greatest(c)
	if err != nil {
		fmt.Println(err)
		return
	}
	p, err := solver.Solve(context.Background(), c, greatest*2/3, solver.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%d of %d bytes, %v µs, at least %.0f\n", p.Peak, greatest, p.Time, p.LowerBound)
	fmt.Println(remat.FormatOps(p.Ops))
	// Output:
	// 100000000 of 156000000 bytes, 410 µs, at least 410
	// S0 S1 K2 F3 F4 F5 F6 S7 S8 S9 S10 S11 L B11 B10 B9 B8 B7 S2 S3 S4 S5 S6 B6 B5 B4 B3 B2 B1 B0
}

// All that there is to choose from, from one table.
func ExampleTable_Curve() {
	table, err := solver.NewTable(context.Background(), alike(4), 0, solver.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, p := range table.Curve() {
		fmt.Printf("%d MB: %v µs\n", p.Peak/1e6, p.Time)
	}
	// Output:
	// 28 MB: 180 µs
	// 32 MB: 160 µs
	// 36 MB: 150 µs
	// 40 MB: 140 µs
	// 52 MB: 130 µs
	// 60 MB: 120 µs
}

// Three micro-batches in flight: the first, whose backward runs while the others wait, keeps the
// most, and the last, whose backward has the stage to itself, the least.
func ExampleSolveDevice() {
	c := alike(6)
	p, err := solver.SolveDevice(context.Background(), solver.Device{Stages: []solver.Stage{{First: c, Later: c}}, MicroBatches: 3, Limit: 150e6}, solver.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, m := range p.MicroBatches[0] {
		fmt.Println(remat.FormatOps(m.Ops))
	}
	fmt.Printf("%d MB, %v µs\n", p.Peak/1e6, p.Time)
	// Output:
	// S0 S1 S2 S3 S4 S5 L B5 B4 B3 B2 B1 B0
	// S0 S1 S2 S3 K4 F5 L S4 S5 B5 B4 B3 B2 B1 B0
	// K0 F1 F2 F3 F4 F5 L S0 S1 S2 S3 S4 S5 B5 B4 B3 B2 B1 B0
	// 140 MB, 620 µs
}
