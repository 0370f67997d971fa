package solver

import (
	"context"
	"math"
)

// solve finds plans under a limit that asks for recomputation.
func (f *microBatches) solve(ctx context.Context, o Options) (StagePlan, error) {
	for _, s := range []*side{f.first, f.later} {
		var err error
		if s.steps, err = newSteps(ctx, s.t, s.b, o.Steps); err != nil {
			return StagePlan{}, err
		}
	}
	reach, first, later := f.reach()
	for _, s := range []*side{f.first, f.later} {
		if err := s.grids(ctx, f.limit, o); err != nil {
			return StagePlan{}, err
		}
	}
	var best []*path
	for _, caps := range [][]int64{
		f.uniform(first, later),
		f.uniform(f.first.t.chain.Input, f.later.t.chain.Input),
		// Micro-batch 0 as much as it likes, all others nothing but their inputs: what is known as
		// except_last.
		f.uniform(f.first.everything(), f.later.t.chain.Input),
	} {
		best = f.better(best, f.realise(caps))
	}
	levels := newLevels(f)
	if err := levels.fill(ctx); err != nil {
		return StagePlan{}, err
	}
	total := levels.levels
	for range realisations {
		caps := levels.caps(total)
		if caps == nil {
			break
		}
		paths := f.realise(caps)
		best = f.better(best, paths)
		if paths != nil {
			break
		}
		// The forwards' own moments do not fit where everything may be held.
		total = levels.sum(caps) - 1 - total/16
	}
	if err := ctx.Err(); err != nil {
		return StagePlan{}, err
	}
	if best == nil {
		return StagePlan{Limit: f.limit, Peak: reach}, nil
	}
	return f.result(best, min(levels.bound(), extra(best))), nil
}

// realisations is how often caps are tried, each time with less held in all.
const realisations = 6

// grids makes the tables for limits up to most bytes.
func (s *side) grids(ctx context.Context, most int64, o Options) error {
	_, all := s.b.of(0, s.t.n)
	m := max(most-s.t.chain.Input, 1)
	unit := s.t.unitFor(min(m, all), o.Slots)
	s.above, s.below = newGrid(s.t, s.b, m, unit, achievable), newGrid(s.t, s.b, m, unit, optimistic)
	if err := s.above.fill(ctx); err != nil {
		return err
	}
	return s.below.fill(ctx)
}

// everything is the most that a plan holds.
func (s *side) everything() int64 { return s.t.chain.Input + s.t.savedSum[s.t.n] }

// uniform is caps: one for micro-batch 0 and one for all others.
func (f *microBatches) uniform(first, later int64) []int64 {
	caps := make([]int64, f.k)
	for b := range caps {
		caps[b] = later
	}
	caps[0] = first
	return caps
}

// reach looks for the least limit that has plans whose held bytes stay below caps, one cap for
// micro-batch 0 and one for all others. It returns the limit and the caps.
func (f *microBatches) reach() (least, first, later int64) {
	least = math.MaxInt64
	for c := range reachCaps + 1 {
		for _, d := range []int{0, c, reachCaps} {
			atFirst, atLater := f.first.share(d), f.later.share(c)
			if need := f.need(atFirst, atLater, least); need < least {
				least, first, later = need, atFirst, atLater
			}
		}
	}
	return least, first, later
}

// reachCaps is the number of caps that reach tries, less one.
const reachCaps = 8

// share is the c-th cap that reach tries: 0 is the input alone, reachCaps is everything. Small caps
// lie closer together.
func (s *side) share(c int) int64 {
	lowest, highest := s.t.chain.Input, s.everything()
	if c == reachCaps {
		return highest
	}
	return lowest + (highest-lowest)/(reachCaps*reachCaps)*int64(c*c)
}

// need is the least limit under which every micro-batch has a plan that holds at most its cap, or
// most if that is less.
func (f *microBatches) need(first, later, most int64) int64 {
	need := int64(0)
	for b := range f.k {
		s := f.side(b)
		fits := func(limit int64) bool {
			r := available{forward: limit, held: later, backward: limit - f.there(b) - int64(f.k-1-b)*later}
			if b == 0 {
				r.held = first
			} else {
				r.forward -= first + int64(b-1)*later
			}
			return newSpine(s.t, s.b, r).feasible()
		}
		if fits(need) {
			continue
		}
		low, high := need, need+1 // low does not fit
		for !fits(high) {
			if high >= most {
				return most
			}
			low, high = high, high+2*(high-need)
		}
		for high-low > 1 {
			if middle := low + (high-low)/2; fits(middle) {
				high = middle
			} else {
				low = middle
			}
		}
		need = high
	}
	return need
}

// realise makes plans that hold at most the caps; nil if there is none for some.
func (f *microBatches) realise(caps []int64) []*path {
	before := make([]int64, f.k+1)
	for b, c := range caps {
		before[b+1] = before[b] + c
	}
	paths := make([]*path, f.k)
	after := int64(0)
	for b := f.k - 1; b >= 0; b-- {
		r := available{forward: f.limit - before[b], held: caps[b], backward: f.limit - f.there(b) - after}
		if b < f.k-1 && b > 0 && paths[b+1].extra == 0 && paths[b+1].fits(r) {
			paths[b] = paths[b+1]
		} else {
			paths[b] = f.side(b).path(r)
		}
		if paths[b] == nil {
			return nil
		}
		after += paths[b].held
	}
	return paths
}

// better improves paths, and returns the better of best and paths. Either may be nil.
func (f *microBatches) better(best, paths []*path) []*path {
	if paths == nil || f.peak(paths) > f.limit {
		return best
	}
	f.improve(paths)
	if best == nil || extra(paths) < extra(best) || extra(paths) == extra(best) && f.peak(paths) < f.peak(best) {
		return paths
	}
	return best
}

// improve plans one micro-batch after the other anew with the bytes that the others leave, as long
// as that helps.
func (f *microBatches) improve(paths []*path) {
	for range improvements {
		before := extra(paths)
		for b := range paths {
			p := f.side(b).path(f.left(paths, b))
			if p != nil && p.better(paths[b]) {
				paths[b] = p
			}
		}
		if extra(paths) >= before {
			return
		}
	}
}

// improvements is how often improve goes through all micro-batches at most.
const improvements = 4
