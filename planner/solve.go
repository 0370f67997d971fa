package planner

import (
	"context"
	"fmt"
	"slices"

	"penstock/internal/arg"
	"penstock/remat"
	"penstock/remat/solver"
	"penstock/schedule"
)

// Solve plans a step. It blocks until the plan is made or ctx ends. It fails with a [*MemoryError]
// if no plan of some stage keeps its limit, with ctx.Err() when ctx ends first, or with what is
// wrong with the problem.
func Solve(ctx context.Context, p Problem) (*Plan, error) {
	if err := arg.Context(ctx, "planner"); err != nil {
		return nil, err
	}
	if p.MicroBatches < 1 {
		return nil, fmt.Errorf("planner: %d micro-batches; want at least 1", p.MicroBatches)
	}
	out := &Plan{Stages: make([]StagePlan, len(p.Stages))}
	var short []Shortage
	for i, s := range p.Stages {
		one, lack, err := p.stage(ctx, s)
		if err != nil {
			return nil, fmt.Errorf("planner: stage %d: %w", i, err)
		}
		if lack != nil {
			lack.Stage = i
			short = append(short, *lack)
		}
		out.Stages[i] = one
	}
	if short != nil {
		return nil, &MemoryError{short}
	}
	generate := p.Schedule
	if generate == nil {
		generate = schedule.GPipe
	}
	var err error
	out.Program, err = generate(schedule.Config{
		Stages: len(p.Stages), MicroBatches: p.MicroBatches, Worker: p.Workers, Skips: p.Skips,
		Recompute: out.recomputes, Capacity: out.capacity(p.Meet),
	})
	if err == nil {
		err = schedule.Check(out.Program, schedule.Limits{})
	}
	if err != nil {
		return nil, fmt.Errorf("planner: %w", err)
	}
	return out, nil
}

// stage plans one stage, or returns what it is short of.
func (p Problem) stage(ctx context.Context, s Stage) (StagePlan, *Shortage, error) {
	out := StagePlan{Device: s.Device, Layers: s.Layers, Policy: s.Policy}
	if s.Policy != Optimal {
		out.MicroBatches = make([]MicroBatch, p.MicroBatches)
		for i := range out.MicroBatches {
			out.MicroBatches[i].Ops = keepAll
			if s.Policy.Recomputes(i) {
				out.MicroBatches[i].Ops = keepInput
			}
		}
		return out, nil, nil
	}
	out.Units, out.Prologue = s.Costs.Units, s.Costs.Prologue
	out.Limit, out.Base, out.waits = s.Memory.Limit, p.base(s), p.waits(s)
	left := int64(0)
	if out.Limit > 0 {
		left = max(out.Limit-out.Base, 1)
	}
	first, later := s.chains()
	var solved solver.StagePlan
	var err error
	if len(first.Layers) == 0 { // nothing has a backward: units run once, and nothing is held
		solved = solver.StagePlan{Feasible: true, Peak: s.prologue(), MicroBatches: make([]remat.Plan, p.MicroBatches)}
	} else if solved, err = within(ctx,
		solver.Stage{First: first, Later: later, MicroBatches: p.MicroBatches, Limit: left}, s.prologue()); err != nil {
		return out, nil, err
	}
	if !solved.Feasible || out.Limit > 0 && out.Base+solved.Peak > out.Limit {
		return out, s.shortage(first, out.Base+solved.Peak), nil
	}
	out.Peak, out.Time, out.LowerBound = out.Base+solved.Peak, solved.Time, solved.LowerBound
	out.Spread = s.Costs.Spread
	if len(first.Layers) > 0 {
		out.Once = first.Once() + float64(p.MicroBatches-1)*later.Once()
	}
	for i, one := range solved.MicroBatches {
		c := later
		if i == 0 {
			c = first
		}
		out.MicroBatches = append(out.MicroBatches, timed(one.Ops, c, out.Prologue))
	}
	return out, nil, nil
}

// keepAll and keepInput are the operations of a stage of one unit.
var (
	keepAll   = []remat.Op{{Kind: remat.ForwardSave}, {Kind: remat.LossStep}, {Kind: remat.Backward}}
	keepInput = []remat.Op{{Kind: remat.ForwardKeep}, {Kind: remat.LossStep}, {Kind: remat.ForwardSave}, {Kind: remat.Backward}}
)

// shortage is the shortage of a stage that needs so many bytes.
func (s Stage) shortage(first remat.Chain, least int64) *Shortage {
	out := &Shortage{Device: s.Device, Limit: s.Memory.Limit, Least: least}
	if p, at, err := solver.Least(first); err == nil && s.Costs.Prologue == 0 && p.Ops[at].Kind != remat.LossStep {
		out.SetBy = fmt.Sprintf("layer %q", first.Layers[p.Ops[at].Layer].Name)
	}
	return out
}

// withPrologue puts the units of the prologue, which run first, before operations.
func withPrologue(ops []remat.Op, prologue int) (out []remat.Op) {
	for i := range prologue {
		out = append(out, remat.Op{Kind: remat.Forward, Layer: i})
	}
	for _, op := range ops {
		if op.Kind != remat.LossStep {
			op.Layer += prologue
		}
		out = append(out, op)
	}
	return out
}

// within plans a stage whose prologue, which runs before a micro-batch's plan begins and while the
// others hold what they hold, takes so many bytes.
//
// The least that the stage needs does not depend on measured times: a stage that has less is
// refused, although times may happen to favour a plan that holds less. Otherwise the least that an
// error names would change with every measurement.
func within(ctx context.Context, s solver.Stage, prologue int64) (solver.StagePlan, error) {
	if prologue == 0 {
		return solver.SolveStage(ctx, s, solver.Options{})
	}
	available := s.Limit
	var least solver.StagePlan
	if available > 0 {
		var err error
		if least, err = tightest(ctx, s, prologue); err != nil || least.Peak > available {
			return solver.StagePlan{Limit: available, Peak: least.Peak}, err
		}
	}
	for {
		solved, err := solver.SolveStage(ctx, s, solver.Options{})
		if err != nil {
			return solved, err
		}
		if !solved.Feasible {
			return least, nil
		}
		if err := addPrologue(&solved, s, prologue); err != nil || available == 0 || solved.Peak <= available {
			return solved, err
		}
		s.Limit = max(s.Limit-(solved.Peak-available), 1)
	}
}

// tightest is the plan of a stage that leaves its prologue most, whatever its layers take.
func tightest(ctx context.Context, s solver.Stage, prologue int64) (solver.StagePlan, error) {
	s.Limit, s.First, s.Later = 1, untimed(s.First), untimed(s.Later)
	solved, err := solver.SolveStage(ctx, s, solver.Options{})
	if err == nil && !solved.Feasible {
		s.Limit = solved.Peak
		solved, err = solver.SolveStage(ctx, s, solver.Options{})
	}
	if err != nil {
		return solved, err
	}
	err = addPrologue(&solved, s, prologue)
	return solved, err
}

// addPrologue counts the prologue of the last micro-batch, which runs while the others hold what
// they hold.
func addPrologue(p *solver.StagePlan, s solver.Stage, prologue int64) error {
	peak := prologue
	for _, one := range p.MicroBatches[:s.MicroBatches-1] {
		report, err := remat.Check(s.Later, one.Ops)
		if err != nil {
			return err
		}
		peak += report.Held
	}
	p.Peak = max(p.Peak, peak)
	return nil
}

// untimed is a chain whose layers all take the same time: its plans, and with them the least that
// is said to do, are the same whenever it was measured.
func untimed(c remat.Chain) remat.Chain {
	c.Layers = slices.Clone(c.Layers)
	for i := range c.Layers {
		l := &c.Layers[i]
		l.Forward, l.ForwardNoGrad, l.Backward = 1, 1, 1
	}
	return c
}
