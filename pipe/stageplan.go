package pipe

import (
	"context"
	"fmt"

	"penstock/profile"
	"penstock/remat/plan"
	"penstock/segment"
)

// planStage plans a stage.
func (r *minibatch) planStage(ctx context.Context, out *planned, at int, chain profile.Chain, room room) error {
	p, k := r.p, len(r.parts)
	stage := p.stages[at]
	first, later := chain.Chain, chain.Later
	if at == 0 && !r.inputGrad && chain.Prologue == 0 { // views of the batch
		first, later = first.WithoutInput(), later.WithoutInput()
	}
	if room.grads {
		first = later
	}
	sp := StagePlan{Chain: chain, Limit: room.limit, Base: room.base}
	left := int64(0)
	if sp.Limit > 0 {
		left = max(sp.Limit-sp.Base, 1)
	}
	prologue := chain.ProloguePeak
	if at > 0 && chain.Prologue > 0 { // what it is sent is no part of the chain then
		prologue += chain.Given
	}
	var solved plan.StagePlan
	var err error
	if len(chain.Layers) == 0 {
		solved = untrained(k, left, prologue)
	} else {
		solved, err = solve(ctx, plan.Stage{First: first, Later: later, MicroBatches: k, Limit: left}, prologue)
	}
	if err != nil {
		return fmt.Errorf("pipe: planning stage %d: %w", at, err)
	}
	if !solved.Feasible {
		e := &BudgetError{Stage: at, Device: stage.Device, Limit: sp.Limit, Base: sp.Base, Least: sp.Base + solved.Peak}
		if least, peak, err := plan.Least(first); err == nil && least.Ops[peak].Kind != plan.LossStep {
			e.Layer = first.Layers[least.Ops[peak].Layer].Name
		}
		return e
	}
	sp.Plans, sp.Peak = solved.MicroBatches, sp.Base+solved.Peak
	out.stages[at] = sp
	for _, one := range solved.MicroBatches {
		out.scripts[at] = append(out.scripts[at], scriptOf(one.Ops, chain.Prologue))
	}
	out.segments[at], err = segment.New(segment.Config{Layers: p.layers, Routes: p.routes, First: stage.first, Last: stage.first + len(stage.Layers), Units: chain.Units, Tail: chain.Tail,
		InputGrad: stage.inputGrad || r.inputGrad})
	return err
}

// untrained is what a stage does in which nothing has a backward: its units run once, and nothing is held.
func untrained(microBatches int, limit, peak int64) plan.StagePlan {
	out := plan.StagePlan{Feasible: limit == 0 || peak <= limit, Limit: limit, Peak: peak}
	if out.Feasible {
		out.MicroBatches = make([]plan.Plan, microBatches)
	}
	return out
}

// solve plans a stage whose prologue, which runs before a micro-batch's plan begins and while the others hold what they hold, takes so many bytes.
func solve(ctx context.Context, s plan.Stage, prologue int64) (plan.StagePlan, error) {
	room := s.Limit
	for {
		solved, err := plan.SolveStage(ctx, s, plan.Options{})
		if err != nil || !solved.Feasible {
			return solved, err
		}
		peak := prologue
		for _, one := range solved.MicroBatches[:s.MicroBatches-1] {
			report, err := plan.Check(s.Later, one.Ops)
			if err != nil {
				return solved, err
			}
			peak += report.Held
		}
		if room == 0 || peak <= room {
			solved.Peak = max(solved.Peak, peak)
			return solved, nil
		}
		if s.Limit -= peak - room; s.Limit < 1 { // not even the prologue fits
			return plan.StagePlan{Limit: room, Peak: peak}, nil
		}
	}
}
