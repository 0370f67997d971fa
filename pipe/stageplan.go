package pipe

import (
	"context"
	"fmt"
	"slices"

	"penstock/profile"
	"penstock/remat"
	"penstock/remat/solver"
	"penstock/segment"
)

// planStage plans a stage. It returns what the stage is short of if no plan keeps its limit.
func (r *minibatch) planStage(ctx context.Context, out *planned, at int, chain profile.Chain, room room) (*Shortage, error) {
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
	var solved solver.StagePlan
	var err error
	if len(chain.Layers) == 0 {
		solved = untrained(k, left, prologue)
	} else {
		solved, err = solve(ctx, solver.Stage{First: first, Later: later, MicroBatches: k, Limit: left}, prologue)
	}
	if err != nil {
		return nil, fmt.Errorf("pipe: planning stage %d: %w", at, err)
	}
	if !solved.Feasible {
		short := &Shortage{Stage: at, Device: stage.Device, Limit: sp.Limit, Least: sp.Base + solved.Peak}
		if least, peak, err := solver.Least(first); err == nil && chain.Prologue == 0 && least.Ops[peak].Kind != remat.LossStep {
			short.SetBy = fmt.Sprintf("layer %q", first.Layers[least.Ops[peak].Layer].Name)
		}
		return short, nil
	}
	sp.Plans, sp.Peak = solved.MicroBatches, sp.Base+solved.Peak
	out.stages[at] = sp
	for _, one := range solved.MicroBatches {
		out.scripts[at] = append(out.scripts[at], scriptOf(one.Ops, chain.Prologue))
	}
	out.segments[at], err = p.segment(stage, r.loss != nil && r.last(at), segment.Config{Units: chain.Units, InputGrad: stage.inputGrad || r.inputGrad})
	return nil, err
}

// untrained is what a stage does in which nothing has a backward: its units run once, and nothing is held.
func untrained(microBatches int, limit, peak int64) solver.StagePlan {
	out := solver.StagePlan{Feasible: limit == 0 || peak <= limit, Limit: limit, Peak: peak}
	if out.Feasible {
		out.MicroBatches = make([]remat.Plan, microBatches)
	}
	return out
}

// solve plans a stage whose prologue, which runs before a micro-batch's plan begins and while the others hold what they hold, takes so many bytes.
func solve(ctx context.Context, s solver.Stage, prologue int64) (solver.StagePlan, error) {
	available := s.Limit
	for {
		solved, err := solver.SolveStage(ctx, s, solver.Options{})
		if err != nil {
			return solved, err
		}
		tightest := !solved.Feasible
		if tightest { // what the tightest plans leave the prologue is the most that it can have
			s.Limit, s.First, s.Later = solved.Peak, untimed(s.First), untimed(s.Later)
			if solved, err = solver.SolveStage(ctx, s, solver.Options{}); err != nil || !solved.Feasible {
				return solved, err
			}
		}
		peak := prologue
		for _, one := range solved.MicroBatches[:s.MicroBatches-1] {
			report, err := remat.Check(s.Later, one.Ops)
			if err != nil {
				return solved, err
			}
			peak += report.Held
		}
		solved.Peak = max(solved.Peak, peak)
		switch {
		case available == 0 || solved.Peak <= available:
			return solved, nil
		case tightest:
			return solver.StagePlan{Limit: available, Peak: solved.Peak}, nil
		}
		s.Limit = max(s.Limit-(solved.Peak-available), 1)
	}
}

// untimed is a chain whose layers all take the same time: its plans, and with them the least that is said to do, are the same whenever it was measured.
func untimed(c remat.Chain) remat.Chain {
	c.Layers = slices.Clone(c.Layers)
	for i := range c.Layers {
		l := &c.Layers[i]
		l.Forward, l.ForwardNoGrad, l.Backward = 1, 1, 1
	}
	return c
}
