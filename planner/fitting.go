package planner

import (
	"context"

	"penstock/remat/solver"
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
		best, _, err = f.solve(0)
		return best, err
	}
	given := max(bytes-f.uncounted, 1)
	best, ok, err := f.solve(given)
	for range rounds {
		if err != nil || !ok || best.peak <= bytes {
			break
		}
		given = max(given-(best.peak-bytes), 1)
		best, ok, err = f.solve(given)
	}
	if err == nil && (!ok || best.peak > bytes) {
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
		more, ok, err := f.solve(given)
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

// fewest is the plan of the fewest bytes by the solver, and how many it was given.
func (f *fitting) fewest() (fitted, int64, error) {
	f.problem.Limit = 1
	none, err := solver.SolveDevice(f.ctx, f.problem, solver.Options{})
	if err != nil {
		return fitted{}, 0, err
	}
	best, _, err := f.solve(none.Peak)
	return best, none.Peak, err
}

// solve solves within so many bytes by the solver's count, and applies the plan. ok says that there
// is one.
func (f *fitting) solve(bytes int64) (out fitted, ok bool, err error) {
	f.problem.Limit = bytes
	out.solved, err = solver.SolveDevice(f.ctx, f.problem, solver.Options{})
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
