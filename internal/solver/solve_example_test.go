package solver_test

import (
	"context"
	"fmt"

	"penstock.example/remat"

	"penstock.example/internal/solver"
)

// alike is a chain of layers that are all the same: 10 µs forward, 20 µs backward, outputs of 4 MB
// with which 12 MB are saved.
func alike(layers int) remat.Chain {
	const mb = 1e6
	c := remat.Chain{Input: 4 * mb, InputGradient: 4 * mb}
	for range layers {
		c.Layers = append(c.Layers, remat.Layer{Forward: 10, ForwardNoGrad: 10, Backward: 20,
			Output: 4 * mb, Saved: 12 * mb, Gradient: 4 * mb})
	}
	return c
}

// What a third less memory costs: five of twelve forwards again.
func ExampleSolve() {
	c := alike(12)
	p, err := solver.Solve(context.Background(), c, 104e6, solver.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%d bytes, %v µs, at least %.0f\n", p.Peak, p.Time, p.LowerBound)
	fmt.Println(p.Ops)
	// Output:
	// 100000000 bytes, 410 µs, at least 410
	// [S0 S1 K2 F3 F4 F5 F6 S7 S8 S9 S10 S11 L B11 B10 B9 B8 B7 S2 S3 S4 S5 S6 B6 B5 B4 B3 B2 B1 B0]
}

// All that there is to choose from.
func ExampleCurve() {
	curve, err := solver.Curve(context.Background(), alike(4), solver.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, p := range curve {
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

// The plans of a micro-batch on a stage, with what it holds while it waits for its backward.
func ExampleStage() {
	stage, err := solver.NewStage(context.Background(), alike(2), true, false)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, m := range stage.Curve(0) {
		fmt.Printf("%v: %d MB, at most %d MB, %v µs\n", m.Ops, m.Held/1e6, m.Backward/1e6,
			m.Time)
	}
	// Output:
	// [S0 S1 L B1 B0]: 28 MB, at most 36 MB, 0 µs
	// [K0 S1 L B1 S0 B0]: 20 MB, at most 28 MB, 10 µs
	// [S0 K1 L S1 B1 B0]: 16 MB, at most 36 MB, 10 µs
	// [K0 K1 L S1 B1 S0 B0]: 8 MB, at most 28 MB, 20 µs
	// [K0 F1 L S0 S1 B1 B0]: 4 MB, at most 36 MB, 20 µs
	// [K0 F1 L K0 S1 B1 S0 B0]: 4 MB, at most 28 MB, 30 µs
}
