package planner

import (
	"context"
	"slices"

	"penstock.example/remat"
	"penstock.example/remat/solver"
)

// fitting looks for the plan of a device that is fastest by a replay within its bytes.
type fitting struct {
	ctx       context.Context
	p         Problem
	out       *Plan
	at        int
	stages    []int
	problem   solver.Device
	uncounted int64        // bytes that the solver does not count
	peak      func() int64 // of the plan that is applied
}

// fitted is a plan and what it takes by a replay.
type fitted struct {
	solved solver.DevicePlan
	peak   int64 // bytes beside the base
}

// rounds is how often the solver is given other bytes, each for more and for fewer.
const rounds = 4

// worthwhile is the part of the bytes that must be left to solve again with them.
const worthwhile = 0.002

// best is the fastest plan found within so many bytes; 0 or less is no limit if the device has none.
// If none was found, it is the one of the fewest bytes, which takes more.
func (f *fitting) best(bytes int64) (best fitted, err error) {
	if f.p.Devices[f.at].Limit == 0 {
		best, _, err = f.solve(0, solver.Options{})
		return best, err
	}
	o := solver.Options{NoBound: f.p.NoBound}
	var given int64
	ok := false
	if bytes > 0 {
		best, given, ok, err = f.within(bytes, o)
	}
	if err == nil && !ok {
		best, given, err = f.fewest()
	}
	if err != nil || best.peak > bytes {
		return best, err
	}
	for range rounds {
		left := bytes - best.peak
		if best.solved.Time <= best.solved.LowerBound || float64(left) <= worthwhile*float64(bytes) {
			break
		}
		given += left
		more, ok, err := f.solve(given, o)
		if err != nil {
			return best, err
		}
		if !ok {
			break
		}
		more.solved.LowerBound = min(more.solved.LowerBound, best.solved.LowerBound)
		if best.solved.LowerBound = more.solved.LowerBound; more.peak > bytes || more.solved.Time >= best.solved.Time {
			break
		}
		best = more
	}
	return best, nil
}

// within is a plan that takes at most so many bytes by a replay, and how many the solver was given. ok says
// that one was found.
func (f *fitting) within(bytes int64, o solver.Options) (out fitted, given int64, ok bool, err error) {
	given = max(bytes-f.uncounted, 1)
	out, ok, err = f.solve(given, o)
	for range rounds {
		if err != nil || !ok || out.peak <= bytes {
			break
		}
		given = max(given-(out.peak-bytes), 1)
		out, ok, err = f.solve(given, o)
	}
	return out, given, ok && out.peak <= bytes, err
}

// fewest is the plan of the fewest bytes that is found, and how many the solver was given for it: that of
// the fewest by the solver's count, or one that takes still fewer by a replay. It does not depend on measured
// times: all operations count the same.
func (f *fitting) fewest() (best fitted, given int64, err error) {
	measured := f.problem.Stages
	f.problem.Stages = slices.Clone(measured)
	for i := range f.problem.Stages {
		s := &f.problem.Stages[i]
		s.First, s.Later, s.Fewer = even(s.First), even(s.Later), even(s.Fewer)
	}
	best.solved, err = solver.FewestDevice(f.ctx, f.problem, solver.Options{NoBound: true})
	least := best.solved.Limit
	if given = least; err == nil {
		f.apply(best.solved)
		best.peak = f.peak()
	}
	for err == nil && best.peak-1-f.uncounted >= least { // otherwise the solver has none
		less, with, ok, failed := f.within(best.peak-1, solver.Options{NoBound: true})
		if err = failed; err != nil || !ok {
			break
		}
		best, given = less, with
	}
	if f.problem.Stages = measured; err != nil {
		return fitted{}, 0, err
	}
	f.apply(best.solved)
	best.solved.Time, best.solved.LowerBound = 0, 0
	for _, i := range f.stages {
		for _, m := range f.out.Stages[i].MicroBatches {
			best.solved.Time += m.Forward + m.Recompute + m.Backward
		}
	}
	for _, s := range measured {
		best.solved.LowerBound += f.once(s)
	}
	best.solved.LowerBound = min(best.solved.LowerBound, best.solved.Time)
	return best, given, nil
}

// even is a chain whose operations take the same time.
func even(c remat.Chain) remat.Chain {
	c.Layers = slices.Clone(c.Layers)
	for i := range c.Layers {
		l := &c.Layers[i]
		l.Forward, l.ForwardNoGrad, l.Backward = 1, 1, 1
	}
	c.Loss.Backward = 0
	return c
}

// once is the time of a stage's micro-batches without recomputation.
func (f *fitting) once(s solver.Stage) float64 {
	if len(s.First.Layers) == 0 {
		return 0
	}
	smaller := 0
	if f.p.Larger > 0 {
		smaller = f.p.MicroBatches - f.p.Larger
	}
	return s.First.Once() + float64(f.p.MicroBatches-1-smaller)*s.Later.Once() + float64(smaller)*s.Fewer.Once()
}

// solve solves within so many bytes by the solver's count, and applies the plan. ok says that there
// is one.
func (f *fitting) solve(bytes int64, o solver.Options) (out fitted, ok bool, err error) {
	f.problem.Limit = bytes
	out.solved, err = solver.SolveDevice(f.ctx, f.problem, o)
	if err != nil || !out.solved.Feasible {
		return out, false, err
	}
	f.apply(out.solved)
	out.peak = f.peak()
	return out, true, nil
}

// apply makes a plan that of the device's stages.
func (f *fitting) apply(solved solver.DevicePlan) {
	for k, i := range f.stages {
		s := &f.out.Stages[i]
		for b, one := range solved.MicroBatches[k] {
			c := f.problem.Stages[k].Later
			switch {
			case b == 0:
				c = f.problem.Stages[k].First
			case f.p.Larger > 0 && b >= f.p.Larger:
				c = f.problem.Stages[k].Fewer
			}
			s.MicroBatches[b] = timed(one.Ops, c, s.Prologue)
		}
	}
}
