package planner

import (
	"context"
	"math"
	"slices"

	"penstock.example/remat"
	"penstock.example/remat/solver"
)

// fitting looks for the fastest plan of a device that a replay shows to stay within its bytes.
type fitting struct {
	ctx       context.Context
	p         Problem
	out       *Plan
	at        int
	stages    []int
	problem   solver.Device
	uncounted int64        // bytes that the solver does not count
	peak      func() int64 // of the plan that is applied
	bound     float64      // the least of the solver's bounds so far
}

// fitted is a plan and its replayed peak.
type fitted struct {
	solved solver.DevicePlan
	peak   int64 // bytes beside the base
}

// tries is how often the solver is given more bytes after a plan fits.
const tries = 4

// worthwhile is the least part of the bytes, left over or between a fit and a failure, for which
// the solver runs again.
const worthwhile = 0.002

// best returns the fastest plan found within a number of bytes; 0 or less is no limit if the device
// has none. If none is found it returns the plan of the fewest bytes.
//
// The solver is given the bytes left over, or counted too high, in addition. Later it is given the
// middle between the most bytes that fit and the fewest that do not.
func (f *fitting) best(bytes int64) (best fitted, err error) {
	if f.p.Devices[f.at].Limit == 0 {
		best, _, err = f.solve(0, solver.Options{})
		return best, err
	}
	o := f.options(f.p.NoBound)
	f.bound = math.Inf(1)
	var fits, high int64 // high does not fit, if it is not 0
	ok := false
	if bytes > 0 {
		best, fits, high, ok, err = f.within(bytes, o)
	}
	if err == nil && !ok {
		bound := f.bound
		best, fits, err = f.fewest()
		f.bound = min(bound, best.solved.LowerBound)
	}
	if err != nil || best.peak > bytes {
		return best, err
	}
	for range tries {
		given := fits + max(bytes, best.solved.Peak+f.uncounted) - best.peak
		if high > 0 {
			given = min(given, fits+(high-fits)/2)
		}
		if best.solved.Time <= f.bound || float64(given-fits) <= worthwhile*float64(bytes) {
			break
		}
		more, ok, err := f.solve(given, o)
		if err != nil {
			return best, err
		}
		if !ok || more.peak > bytes {
			high = given
			continue
		}
		if fits = given; more.solved.Time < best.solved.Time {
			best = more
		}
	}
	best.solved.LowerBound = min(best.solved.LowerBound, f.bound)
	return best, nil
}

func (f *fitting) options(noBound bool) solver.Options {
	return solver.Options{NoBound: noBound, Rough: f.p.Rough}
}

// within returns a plan with a replayed peak of at most a number of bytes, the bytes given to the
// solver for it, and the fewest bytes given without success. ok reports whether it found a plan.
//
// A plan of fewer bytes by the solver's count may take more by a replay. So the solver is given
// slightly fewer bytes each time: enough less for another plan, an eighth of the excess, or a
// quarter more than the last reduction.
func (f *fitting) within(bytes int64, o solver.Options) (out fitted, given, high int64, ok bool, err error) {
	given = max(bytes-f.uncounted, 1)
	for fewer := int64(0); ; {
		if out, ok, err = f.solve(given, o); err != nil || !ok || out.peak <= bytes {
			return out, given, high, ok, err
		}
		high, fewer = given, max(fewer+fewer/4, (out.peak-bytes)/8, given-out.solved.Peak+1)
		if given -= fewer; given <= 0 {
			return out, 0, high, false, nil
		}
	}
}

// fewest returns the plan of the fewest bytes found, and the bytes given to the solver for it. It
// is the solver's plan of the fewest bytes, or one with a lower replayed peak. It does not depend
// on measured times: all operations count the same.
func (f *fitting) fewest() (best fitted, given int64, err error) {
	measured := f.problem.Stages
	f.problem.Stages = slices.Clone(measured)
	for i := range f.problem.Stages {
		s := &f.problem.Stages[i]
		s.First, s.Later, s.Fewer = unitCosts(s.First), unitCosts(s.Later), unitCosts(s.Fewer)
	}
	best.solved, err = solver.FewestDevice(f.ctx, f.problem, f.options(true))
	least := best.solved.Limit
	if given = least; err == nil {
		f.apply(best.solved)
		best.peak = f.peak()
	}
	for err == nil && best.peak-1-f.uncounted >= least { // otherwise the solver has none
		less, with, _, ok, failed := f.within(best.peak-1, f.options(true))
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

// unitCosts returns a chain in which all operations take the same time.
func unitCosts(c remat.Chain) remat.Chain {
	c.Layers = slices.Clone(c.Layers)
	for i := range c.Layers {
		l := &c.Layers[i]
		l.Forward, l.ForwardNoGrad, l.Backward = 1, 1, 1
	}
	c.Loss.Backward = 0
	return c
}

// once returns the time of a stage's micro-batches without recomputation.
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

// solve solves within a number of bytes by the solver's count, and applies the plan. ok reports
// whether a plan exists.
func (f *fitting) solve(bytes int64, o solver.Options) (out fitted, ok bool, err error) {
	f.problem.Limit = bytes
	out.solved, err = solver.SolveDevice(f.ctx, f.problem, o)
	if err != nil || !out.solved.Feasible {
		return out, false, err
	}
	f.bound = min(f.bound, out.solved.LowerBound)
	f.apply(out.solved)
	out.peak = f.peak()
	return out, true, nil
}

// apply sets the operations of the device's stages.
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
