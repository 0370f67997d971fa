package planner_test

import (
	"fmt"

	"pgregory.net/rapid"

	"penstock/planner"
	"penstock/remat"
	"penstock/schedule"
)

// chain draws the chain of a stage's units; gradients of parameters are made by the first
// micro-batch.
func chain(t *rapid.T, layers int) (first, later remat.Chain) {
	bytes := func(name string) int64 { return rapid.Int64Range(0, 100).Draw(t, name) }
	micros := func(name string) float64 { return float64(rapid.IntRange(1, 50).Draw(t, name)) }
	first = remat.Chain{Input: bytes("input"), InputGradient: bytes("input gradient"), Loss: remat.Loss{Backward: micros("loss")}}
	for i := range layers {
		output := bytes("output")
		first.Layers = append(first.Layers, remat.Layer{
			Name: fmt.Sprint("layer", i), Forward: micros("forward"), ForwardNoGrad: micros("forward without gradients"), Backward: micros("backward"),
			Output: output, Saved: output + bytes("saved"), ForwardTmp: bytes("forward tmp"), ForwardNoGradTmp: bytes("no grad tmp"), BackwardTmp: bytes("backward tmp"),
			Gradient: output, WeightGradient: bytes("weights"),
		})
	}
	later = first
	later.Layers = append([]remat.Layer(nil), first.Layers...)
	for i := range later.Layers {
		later.Layers[i].WeightGradient = 0
	}
	return first, later
}

// problem draws stages of all policies, each on a device of its own; limits lie between what cannot
// do and what is more than enough.
func problem(t *rapid.T) planner.Problem {
	p := planner.Problem{MicroBatches: rapid.IntRange(1, 4).Draw(t, "micro-batches")}
	stages := rapid.IntRange(1, 3).Draw(t, "stages")
	for i := range stages {
		s := planner.Stage{Device: fmt.Sprint("cpu:", i), Policy: rapid.SampledFrom(planner.Policies).Draw(t, "policy")}
		units := rapid.IntRange(1, 4).Draw(t, "units")
		s.Layers = units
		if s.Policy == planner.Optimal {
			c := planner.Costs{Prologue: rapid.IntRange(0, units).Draw(t, "prologue"),
				Gives: rapid.Int64Range(0, 50).Draw(t, "gives")}
			c.First, c.Later = chain(t, units-c.Prologue)
			for range units {
				c.Units = append(c.Units, rapid.IntRange(1, 3).Draw(t, "layers of a unit"))
			}
			s.Layers = 0
			for _, n := range c.Units {
				s.Layers += n
			}
			if c.Prologue > 0 {
				c.ProloguePeak = rapid.Int64Range(0, 200).Draw(t, "prologue's peak")
			}
			c.Deferred = rapid.Int64Range(0, 50).Draw(t, "deferred")
			s.Costs = c
			s.Memory = planner.Memory{Live: rapid.Int64Range(0, 100).Draw(t, "live"),
				State: rapid.Int64Range(0, 50).Draw(t, "state"), Gradients: rapid.Bool().Draw(t, "gradients"), BatchInput: i == 0}
			if rapid.Bool().Draw(t, "limited") {
				s.Memory.Limit = rapid.Int64Range(1, 4000).Draw(t, "limit")
			}
		}
		p.Workers = append(p.Workers, i)
		p.Stages = append(p.Stages, s)
	}
	p.Schedule = rapid.SampledFrom([]schedule.Generator{nil, schedule.OneFOneB, schedule.ZeroBubbleH1, schedule.ZeroBubbleH2}).Draw(t, "schedule")
	if stages == 3 && rapid.Bool().Draw(t, "skip") {
		p.Skips = []schedule.Edge{{From: 0, To: 2}}
	}
	return p
}
