package planner_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"penstock.example/planner"
	"penstock.example/remat"
	"penstock.example/schedule"
)

// The curve of a plan that was read is what planning under each of its limits gives, where chains say all
// there is to say; the plan lies on it.
func TestOverLimits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		layers := rapid.IntRange(2, 4).Draw(t, "layers")
		c := chain(t, layers)
		first := rapid.IntRange(1, layers-1).Draw(t, "first")
		p := planner.FromChain(c, []int{first, layers - first}, []int{0, 1}, rapid.IntRange(1, 3).Draw(t, "micro-batches"))
		p.NoBound = true
		p.Schedule = rapid.SampledFrom([]schedule.Generator{schedule.GPipe, schedule.OneFOneB}).Draw(t, "schedule")
		var chains []remat.Chain
		for i := range p.Stages {
			p.Stages[i].Memory.Gradients = true
			chains = append(chains, p.Stages[i].Costs.Chain(remat.Adds))
		}
		limited := func(limit int64) (*planner.Plan, error) {
			p.Devices = slices.Clone(p.Devices)
			for i := range p.Devices {
				p.Devices[i].Limit = limit
			}
			return planner.Solve(t.Context(), p)
		}
		free, err := limited(0)
		if err != nil {
			t.Fatal(err)
		}
		most := max(free.Devices[0].Peak, free.Devices[1].Peak)
		made, err := limited(rapid.Int64Range(1, most).Draw(t, "limit"))
		if err != nil {
			made = free
		}
		p.Schedule = schedule.Fixed(made.Program) // under a limit its transfers may be others
		if free, err = limited(0); err != nil {
			t.Fatal(err)
		}
		most = max(free.Devices[0].Peak, free.Devices[1].Peak)
		read, err := planner.Parse(made.String())
		if err != nil {
			t.Fatal(err)
		}
		const points = 5
		curve, err := read.OverLimits(t.Context(), chains, points)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(curve); n == 0 || n > points || curve[n-1].Limit != most || curve[n-1].Step > free.Step() {
			t.Fatalf("%v ends elsewhere than with %v within %d", curve, free.Step(), most)
		}
		at, best := max(made.Devices[0].Peak, made.Devices[1].Peak), time.Duration(1<<62)
		for i, point := range curve {
			if i > 0 && (point.Limit <= curve[i-1].Limit || point.Step > curve[i-1].Step) {
				t.Errorf("%v does not fall", curve)
			}
			plan, err := free, error(nil)
			if point.Limit < most { // within that nothing need be recomputed
				plan, err = limited(point.Limit)
			}
			if err != nil {
				t.Fatalf("no plan within %d: %v", point.Limit, err)
			}
			if best = min(best, plan.Step()); point.Step != best {
				t.Errorf("within %d bytes %v, and planning gives %v", point.Limit, point.Step, best)
			}
			if point.Limit >= at && point.Step > made.Step()*6/5 { // plans of devices need not be the best; see remat/solver
				t.Errorf("within %d bytes %v, and the plan takes %v within %d", point.Limit, point.Step, made.Step(), at)
			}
		}
	})
}

// What is not known of a plan is an error, and what a deadline lets find is returned.
func TestOverLimitsRefuses(t *testing.T) {
	c := remat.Chain{Input: 8}
	for range 4 {
		c.Layers = append(c.Layers, remat.Layer{Forward: 1, ForwardNoGrad: 1, Backward: 2, Output: 8, Saved: 16, Gradient: 8})
	}
	p := planner.FromChain(c, []int{2, 2}, []int{0, 1}, 2)
	plan, err := planner.Solve(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	chains := []remat.Chain{p.Stages[0].Costs.Chain(remat.Adds), p.Stages[1].Costs.Chain(remat.Adds)}
	if _, err := plan.OverLimits(t.Context(), chains[:1], 5); err == nil {
		t.Error("one chain for two stages")
	}
	if _, err := plan.OverLimits(t.Context(), []remat.Chain{chains[0], {}}, 5); err == nil {
		t.Error("a chain without layers")
	}
	ctx, cancel := context.WithTimeout(t.Context(), -1)
	defer cancel()
	if points, err := plan.OverLimits(ctx, chains, 5); err != nil || len(points) > 0 {
		t.Errorf("after the deadline: %v, %v", points, err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	if _, err := plan.OverLimits(ctx, chains, 5); err == nil {
		t.Error("no error after ctx was cancelled")
	}
	points, err := plan.OverLimits(t.Context(), chains, 5)
	if err != nil || len(points) < 2 || points[0].Step <= points[len(points)-1].Step {
		t.Errorf("%v, %v", points, err)
	}
}
