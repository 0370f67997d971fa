package pins_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"penstock.example/internal/must"
	"penstock.example/internal/solver"
	"penstock.example/remat"
)

// chain draws the chain of a seed: even or ragged sizes, repeated blocks, memory that inputs share.
func chain(seed uint64) remat.Chain {
	r := rand.New(rand.NewPCG(seed, 1))
	layers := 2 + r.IntN(60)
	unit := []int64{1, 1000, 1 << 20}[r.IntN(3)]
	size := func(most int) int64 { return unit * int64(1+r.IntN(most)) }
	period := 1 + r.IntN(layers)
	c := remat.Chain{Input: size(20)}
	if r.IntN(2) == 0 {
		c.InputGradient = c.Input
	}
	for i := range layers {
		if i >= period && seed%2 == 0 {
			c.Layers = append(c.Layers, c.Layers[i-period])
			continue
		}
		forward := float64(1 + r.IntN(1000))
		l := remat.Layer{
			Forward: forward, ForwardNoGrad: forward * (0.8 + 0.2*r.Float64()), Backward: forward * (1 +
				2*r.Float64()),
			Output: size(20), ForwardTmp: size(10), ForwardNoGradTmp: size(10), BackwardTmp: size(20),
		}
		l.Saved, l.Gradient = l.Output+size(60), l.Output
		if r.IntN(3) == 0 {
			l.WeightGradient = size(10)
		}
		c.Layers = append(c.Layers, l)
	}
	for i := range c.Layers {
		c.Layers[i].Name = fmt.Sprint(i)
	}
	if layers > 4 {
		for _, from := range r.Perm(layers - 3)[:r.IntN(min(4, layers-3))] {
			c.Carries = append(c.Carries,
				remat.Carry{From: from, To: from + 2 + r.IntN(layers-from-2), Bytes: unit})
		}
	}
	c.Loss = remat.Loss{Backward: 1, Tmp: size(4)}
	return c
}

// TestChains solves chains under limits. No plan may exceed its limit or be slower than in the
// table.
//
// A line of testdata/chains.txt has a seed; the least limit and the peak without recomputation, in
// bytes; a limit; and the plan's peak in bytes and time in microseconds. -update refuses a slower
// plan.
func TestChains(t *testing.T) {
	const table = "testdata/chains.txt"
	var out []string
	for _, line := range read(t, table) {
		var seed uint64
		var least, greatest, limit, peak int64
		var time float64
		if _, err := fmt.Sscan(line, &seed, &least, &greatest, &limit, &peak, &time); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		c := chain(seed)
		lowest, _, err := solver.Least(c)
		must.Do(t, err)
		all := must.Get(remat.Check(c, remat.None(len(c.Layers))))(t).Peak
		if *must.Update && limit == 0 {
			limit = lowest.Peak + (all-lowest.Peak)*int64(seed%10)/10
		}
		p := solve(t, c, limit, time)
		if !*must.Update && (lowest.Peak != least || all != greatest) {
			t.Errorf("chain %d: takes %d to %d bytes, want %d to %d", seed, lowest.Peak, all, least, greatest)
		}
		out = append(out, fmt.Sprintf("%d %d %d %d %d %.17g", seed, lowest.Peak, all, limit, p.Peak, p.Time))
	}
	write(t, table, out)
}

// solve returns the plan of a chain under a limit. It fails the test if the plan exceeds the limit,
// or is slower than before; a former time of 0 is unknown.
func solve(t *testing.T, c remat.Chain, limit int64, was float64) remat.Plan {
	t.Helper()
	p := must.Get(solver.Solve(context.Background(), c, limit, solver.Options{}))(t)
	const rounding = 1e-9 // times are sums in floating point
	if err := remat.CheckPlan(c, p); err != nil || !p.Feasible || p.Peak > limit || was > 0 &&
		p.Time > was*(1+rounding) {
		t.Errorf("%v us and a peak of %d bytes (feasible: %v) under the limit %d, was %v us; %v", p.Time,
			p.Peak,
			p.Feasible, limit, was, err)
	}
	return p
}
