package plan_test

import (
	"context"
	"slices"
	"testing"

	"pgregory.net/rapid"

	planner "penstock.example/plan"
	"penstock.example/remat"
	"penstock.example/schedule"
)

// The curve of a plan that was read is what planning under each of its limits gives, where chains
// say all there is to say.
func TestOverLimits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		layers := rapid.IntRange(2, 4).Draw(t, "layers")
		c := chain(t, layers)
		for i := range c.Layers {
			c.Layers[i].ForwardNoGrad = c.Layers[i].Forward // otherwise a step may be shorter with recomputations
		}
		first := rapid.IntRange(1, layers-1).Draw(t, "first")
		p := planner.FromChain(c, []int{first, layers - first}, []int{0, 1}, rapid.IntRange(1, 3).Draw(t, "micro-batches"))
		p.Schedule = rapid.SampledFrom([]schedule.Generator{schedule.GPipe, schedule.OneFOneB}).Draw(t, "schedule")
		var chains []remat.Chain
		for i := range p.Stages {
			p.Stages[i].Memory.Gradients = true
			chains = append(chains, p.Stages[i].Costs.Chain(remat.Adds))
		}
		made, err := planner.Solve(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		read, err := planner.Parse(made.String())
		if err != nil {
			t.Fatal(err)
		}
		const points = 5
		curve, err := read.OverLimits(t.Context(), chains, points)
		most := max(made.Devices[0].Peak, made.Devices[1].Peak)
		if n := len(curve); err != nil || n == 0 || n > points || curve[n-1].Limit > most || curve[n-1].Step > made.Step() {
			t.Fatalf("%v, %v ends elsewhere than with %v within %d", curve, err, made.Step(), most)
		}
		p.Schedule = schedule.Fixed(made.Program)
		for i, point := range curve {
			if i > 0 && (point.Limit <= curve[i-1].Limit || point.Step >= curve[i-1].Step) {
				t.Errorf("%v does not fall", curve)
			}
			p.Devices = slices.Clone(p.Devices)
			for i := range p.Devices {
				p.Devices[i].Limit = point.Limit
			}
			plan, err := planner.Solve(t.Context(), p)
			if err != nil || point.Limit < most && plan.Step() > point.Step {
				t.Errorf("within %d bytes %v, and planning gives\n%v%v", point.Limit, point.Step, plan, err)
			}
		}
	})
}

// What is not known of a plan is an error.
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
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := plan.OverLimits(ctx, chains, 5); err == nil {
		t.Error("no error after ctx was cancelled")
	}
	points, err := plan.OverLimits(t.Context(), chains, 5)
	if err != nil || len(points) < 2 || points[0].Step <= points[len(points)-1].Step {
		t.Errorf("%v, %v", points, err)
	}
}
