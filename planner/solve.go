package planner

import (
	"context"
	"fmt"

	"penstock/internal/arg"
	"penstock/remat"
	"penstock/remat/solver"
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
	bases := p.bases()
	for i, s := range p.Stages {
		one, lack, err := p.stage(ctx, s, bases[i], i == len(p.Stages)-1)
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
	var err error
	out.Program, err = p.program(out.recomputes, out.capacity(p.Meet))
	if err != nil {
		return nil, fmt.Errorf("planner: %w", err)
	}
	return out, nil
}

// stage plans one stage, which holds base whatever is recomputed, or returns what it is short of.
func (p Problem) stage(ctx context.Context, s Stage, base int64, last bool) (StagePlan, *Shortage, error) {
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
	out.Limit, out.Base, out.waits = s.Memory.Limit, base, p.waits(s)
	left := int64(0)
	if out.Limit > 0 {
		left = max(out.Limit-out.Base, 1)
	}
	first, later := s.chains()
	one := solver.Stage{First: first, Later: later, Prologue: s.prologue()}
	if !last {
		one.Gradient = solver.AfterRecompute
	}
	solved, err := solver.SolveDevice(ctx, solver.Device{Stages: []solver.Stage{one}, MicroBatches: p.MicroBatches, Limit: left}, solver.Options{})
	if err != nil {
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
	for i, one := range solved.MicroBatches[0] {
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
	if p, at, err := solver.Least(first); err == nil && len(first.Layers) > 0 && s.Costs.Prologue == 0 && p.Ops[at].Kind != remat.LossStep {
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
