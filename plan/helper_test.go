package plan_test

import (
	"fmt"
	"slices"
	"time"

	"pgregory.net/rapid"

	"penstock.example/internal/must"
	"penstock.example/plan"
	"penstock.example/remat"
	"penstock.example/schedule"
)

// chain draws the chain of a stage's units; gradients of parameters are made by the first
// micro-batch.
func chain(t *rapid.T, layers int) (c remat.Chain) {
	bytes := func(name string) int64 { return rapid.Int64Range(0, 100).Draw(t, name) }
	micros := func(name string) float64 { return float64(rapid.IntRange(1, 50).Draw(t, name)) }
	c = remat.Chain{Input: bytes("input"), InputGradient: bytes("input gradient"),
		Loss: remat.Loss{Backward: micros("loss")}}
	for i := range layers {
		output := bytes("output")
		c.Layers = append(c.Layers, remat.Layer{
			Name: fmt.Sprint("layer", i), Forward: micros("forward"),
			ForwardNoGrad: micros("forward without gradients"), Backward: micros("backward"),
			Output: output, Saved: output + bytes("saved"), ForwardTmp: bytes("forward tmp"),
			ForwardNoGradTmp: bytes("no grad tmp"), BackwardTmp: bytes("backward tmp"),
			Gradient: output, WeightGradient: bytes("weights"),
		})
	}
	return c
}

// withPrologue is the costs of a chain's units after a prologue that takes a number of bytes.
func withPrologue(c remat.Chain, prologue int, peak int64) plan.StageCosts {
	out := plan.CostsOf(c)
	if out.Prologue = prologue; prologue > 0 {
		out.Footprint, out.Times = remat.FootprintOf(c, prologue),
			append(make([]remat.UnitTimes, prologue), out.Times...)
		out.Footprint.Units[0].Keep = [3]int64{peak, peak, peak}
		out.Units = append(slices.Repeat([]int{1}, prologue), out.Units...)
	}
	return out
}

// problem draws stages of all policies, with devices of their own or two to a device in turn, in
// the orders of GPipe and 1F1B. Limits lie between what cannot do and what is more than enough.
func problem(t *rapid.T) plan.Problem {
	p := plan.Problem{MicroBatches: rapid.IntRange(1, 5).Draw(t, "micro-batches")}
	stages := rapid.IntRange(1, 4).Draw(t, "stages")
	devices := rapid.IntRange(1, stages).Draw(t, "devices")
	p.Schedule = rapid.SampledFrom([]schedule.Generator{nil, schedule.GPipe}).Draw(t, "schedule")
	if devices == stages && rapid.Bool().Draw(t, "1F1B") {
		other, _ := schedule.Named(rapid.SampledFrom([]string{"1f1b", "zb-h1", "zb-h2"}).Draw(t,
			"other schedule"))
		p.Schedule = other.Generate
	}
	for i := range devices {
		p.Devices = append(p.Devices, plan.ProblemDevice{Name: fmt.Sprint("cpu:", i),
			Live: rapid.Int64Range(0, 100).Draw(t, "live")})
		if rapid.Bool().Draw(t, "limited") {
			p.Devices[i].Limit = rapid.Int64Range(1, 4000).Draw(t, "limit")
		}
	}
	gives := int64(0)
	for i := range stages {
		s := plan.Stage{Device: i % devices, Policy: rapid.SampledFrom(plan.Policies).Draw(t, "policy")}
		if i >= devices && (s.Policy == plan.Optimal) != (p.Stages[i-devices].Policy == plan.Optimal) {
			s.Policy = p.Stages[i-devices].Policy
		}
		units := rapid.IntRange(1, 4).Draw(t, "units")
		s.Layers = units
		if s.Policy == plan.Optimal {
			prologue, peak := 0, int64(0)
			if i == 0 || p.Stages[i-1].Policy == plan.Optimal &&
				len(p.Stages[i-1].Costs.Units) == p.Stages[i-1].Costs.Prologue {
				prologue = rapid.IntRange(0, units).Draw(t, "prologue")
			}
			c := chain(t, units-prologue)
			if prologue == 0 && i > 0 {
				c.Input = gives
			}
			if prologue > 0 {
				c.InputGradient, peak = 0, rapid.Int64Range(0, 200).Draw(t, "prologue's peak")
			}
			if gives = c.Input; units > prologue {
				gives = c.Layers[units-prologue-1].Output
			}
			s.Costs = withPrologue(c, prologue, peak)
			s.Layers = 0
			for k := range s.Costs.Units {
				s.Costs.Units[k] = rapid.IntRange(1, 3).Draw(t, "layers of a unit")
				s.Layers += s.Costs.Units[k]
			}
			s.Memory = plan.Memory{State: rapid.Int64Range(0, 50).Draw(t, "state"),
				Gradients: rapid.Bool().Draw(t, "gradients"), BatchInput: i == 0}
		}
		p.Stages = append(p.Stages, s)
	}
	if stages >= 3 && rapid.Bool().Draw(t, "skip") {
		p.Skips = []plan.Skip{{From: 0, To: 2}}
	}
	return p
}

// stepOf is the predicted duration of a step.
func stepOf(t must.T, p *plan.Plan) time.Duration {
	line, _, err := p.Timeline()
	must.Do(t, err)
	return line.Makespan()
}
