package solver

import (
	"context"
	"math"
	"slices"
)

// solve finds plans under a limit that asks for recomputation. Without any, most bytes are there.
func (f *microBatches) solve(ctx context.Context, most int64, o Options) (DevicePlan, error) {
	for _, s := range f.sides {
		if f.rough(o) {
			break
		}
		var err error
		if s.steps, err = newSteps(ctx, s.t, s.b, o.Steps); err != nil {
			return DevicePlan{}, err
		}
	}
	reach, reached := f.reach()
	usual := [][]*path{f.usual(false), f.usual(true)}
	for _, paths := range usual {
		reach = min(reach, f.peak(paths))
	}
	if f.fewest {
		if f.limit = min(reach, most); f.limit == most {
			return f.result(f.plain(), 0), nil
		}
	}
	if reach > f.limit {
		return DevicePlan{Limit: f.limit, Peak: min(reach, most)}, nil
	}
	for _, s := range f.sides {
		shares := int64(0)
		for i := range f.items {
			if f.items[i].side == s {
				shares = max(shares, f.items[i].shares)
			}
		}
		if err := s.grids(ctx, f.limit+shares, o); err != nil {
			return DevicePlan{}, err
		}
	}
	best := f.better(nil, f.realise(reached))
	for _, caps := range f.extremes() {
		best = f.better(best, f.realise(caps))
	}
	for _, paths := range usual {
		best = f.better(best, paths)
	}
	levels := newLevels(f, o)
	if err := levels.fill(ctx); err != nil {
		return DevicePlan{}, err
	}
	for _, caps := range levels.shares() {
		paths := f.realise(caps)
		best = f.better(best, paths)
		if paths != nil {
			break
		}
	}
	if err := ctx.Err(); err != nil {
		return DevicePlan{}, err
	}
	return f.result(best, min(levels.bound(), extra(best))), nil
}

// extremes are caps of nothing but inputs, of that and all of micro-batch 0, what is known as
// except_last, and of all of one stage and nothing but the inputs of the others.
func (f *microBatches) extremes() (list [][]int64) {
	n := len(f.stages)
	inputs := make([]shares, n)
	list = [][]int64{f.caps(inputs), f.caps(slices.Repeat([]shares{{first: reachCaps}}, n))}
	for stage := range n {
		if n > 1 {
			one := slices.Clone(inputs)
			one[stage] = shares{reachCaps, reachCaps}
			list = append(list, f.caps(one))
		}
	}
	return list
}

// usual is what pipelines do as a rule: nothing but inputs is held, and all of micro-batch 0 if it is
// spared. Caps may miss it where stages share memory, which counts only once.
func (f *microBatches) usual(spare bool) []*path {
	paths := f.plain()
	for i := range f.items {
		s := f.items[i].side
		if s == nil || spare && f.items[i].microBatch == 0 {
			continue
		}
		p := newPath(s.t)
		p.compute(0, s.t.n, s.t.n)
		p.save(s.t.n, s.t.n)
		p.release(0, s.t.n)
		p.all(0, s.t.n-1)
		paths[i] = p
	}
	return paths
}

// grids makes the tables for limits up to most bytes. That of bounds is left out where none is wanted.
func (s *side) grids(ctx context.Context, most int64, o Options) error {
	_, all := s.b.of(0, s.t.n)
	m := max(most-s.t.chain.Input, 1)
	unit := s.t.unitFor(min(m, all), o.Slots)
	s.above, s.below = newGrid(s.t, s.b, m, unit, achievable), newGrid(s.t, s.b, m, unit, optimistic)
	if err := s.above.fill(ctx); err != nil || o.NoBound {
		return err
	}
	return s.below.fill(ctx)
}

// everything is the most that a plan holds.
func (s *side) everything() int64 { return s.t.chain.Input + s.t.savedSum[s.t.n] }

// reach looks for the least limit that has plans whose held bytes stay below caps, and returns both.
// Micro-batch 0 of a stage and all others of it have a cap each. It goes through the stages as long
// as that helps.
func (f *microBatches) reach() (least int64, caps []int64) {
	shares := make([]shares, len(f.stages))
	least = math.MaxInt64
	for before := int64(0); before != least; {
		before = least
		for stage := range shares {
			best := shares[stage]
			for c := range reachCaps + 1 {
				for _, d := range []int{0, c, reachCaps} {
					shares[stage].first, shares[stage].later = d, c
					try := f.caps(shares)
					if need := f.need(try, least); need < least {
						least, caps, best = need, try, shares[stage]
					}
				}
			}
			shares[stage] = best
		}
		if len(shares) == 1 {
			break
		}
	}
	if least > f.limit && len(f.items) <= fewItems {
		return f.reachOneByOne(least, caps)
	}
	return least, caps
}

// fewItems is the most items for each of which reach looks for a cap of its own.
const fewItems = 32

// reachOneByOne is reach with a cap for each item. It begins with what reach has found.
func (f *microBatches) reachOneByOne(least int64, caps []int64) (int64, []int64) {
	for before := int64(0); before != least; {
		before = least
		for i := range f.items {
			s := f.items[i].side
			for c := 0; s != nil && c <= reachCaps; c++ {
				was := caps[i]
				caps[i] = s.share(c)
				if need := f.need(caps, least); need < least {
					least = need
				} else {
					caps[i] = was
				}
			}
		}
	}
	return least, caps
}

// reachCaps is the number of caps that reach tries, less one.
const reachCaps = 8

// shares are the caps of a stage's micro-batch 0 and of its others, see share.
type shares struct{ first, later int }

// caps are the caps of all items, from those of each stage.
func (f *microBatches) caps(of []shares) []int64 {
	caps := make([]int64, len(f.items))
	for i := range f.items {
		it := &f.items[i]
		switch {
		case it.side == nil:
		case it.microBatch == 0:
			caps[i] = it.side.share(of[it.stage].first)
		default:
			caps[i] = it.side.share(of[it.stage].later)
		}
	}
	return caps
}

// share is the c-th cap that reach tries: 0 is the input alone, reachCaps is everything. Small caps
// lie closer together.
func (s *side) share(c int) int64 {
	lowest, highest := s.t.chain.Input, s.everything()
	if c == reachCaps {
		return highest
	}
	return lowest + (highest-lowest)/(reachCaps*reachCaps)*int64(c*c)
}

// others is what an item finds on the device that is not its own, by event: bytes at its forward
// and at its backward, where all hold so much.
func (f *microBatches) others(held []int64) (forward, backward []int64) {
	forward, backward = make([]int64, len(f.items)), make([]int64, len(f.items))
	waiting := int64(0)
	for _, e := range f.events {
		switch {
		case e.item < 0:
		case e.backward:
			waiting -= held[e.item]
			backward[e.item] = e.fixed + waiting
		default:
			forward[e.item] = e.fixed + waiting
			waiting += held[e.item]
		}
	}
	return forward, backward
}

// between is the most bytes at a moment between computations where all hold so much.
func (f *microBatches) between(held []int64) (most int64) {
	waiting := int64(0)
	for _, e := range f.events {
		switch {
		case e.item < 0:
			most = max(most, e.fixed+waiting)
		case e.backward:
			waiting -= held[e.item]
		default:
			waiting += held[e.item]
		}
	}
	return most
}

// need is the least limit under which every item has a plan that holds at most its cap, or most if
// that is less.
func (f *microBatches) need(caps []int64, most int64) int64 {
	before, after := f.others(caps)
	need := f.between(caps)
	for i := range f.items {
		it := &f.items[i]
		need = max(need, before[i]+it.forward, after[i]+it.backward)
		if need < most && it.side != nil {
			need = max(need, after[i]+f.backward(it.side, after[i]-before[i], caps[i]))
		}
		if need >= most {
			return most
		}
	}
	return need
}

// backwardKey is what the fewest bytes at a backward depend on.
type backwardKey struct {
	side        *side
	early, held int64
}

// impossible is more than the bytes of any plan.
const impossible = int64(1) << 60

// backward is the fewest bytes at the backward with which a side has a plan that holds at most so many, if early
// more are available before the loss than after it; or impossible.
//
// Whether there is a plan with so many bytes depends on them in two ways: they are to be as many as a spine needs,
// and what waits until the loss, all of them but held, grows with them. A spine of more bytes needs no fewer. So
// what a spine needs that has too few is a bound of how many there must be, and the first bound that suffices is
// the answer.
func (f *microBatches) backward(s *side, early, held int64) int64 {
	key := backwardKey{s, early, held}
	if known, ok := f.fewestBackward[key]; ok {
		return known
	}
	needs := func(bytes, held int64) int64 {
		f.probe.fill(s.t, s.b, available{forward: bytes + early, held: held, backward: bytes})
		return s.t.chain.Input + f.probe.least[0]
	}
	bytes := needs(0, impossible) // with any number held
	for range 8 {
		more := needs(bytes, held)
		if more <= bytes {
			f.fewestBackward[key] = bytes
			return bytes
		}
		bytes = more
	}
	low, high := bytes, bytes+1 // low does not do
	for needs(high, held) > high {
		if high >= impossible {
			f.fewestBackward[key] = impossible
			return impossible
		}
		low, high = high, high+2*(high-bytes)
	}
	for high-low > 1 {
		if middle := low + (high-low)/2; needs(middle, held) <= middle {
			high = middle
		} else {
			low = middle
		}
	}
	f.fewestBackward[key] = high
	return high
}

// realise makes plans that hold at most the caps; nil if there is none for some. The items come in
// the reverse order of their backwards. What one does not hold of its cap is left to those whose
// backward comes before.
func (f *microBatches) realise(caps []int64) []*path {
	held := append([]int64(nil), caps...)
	paths := make([]*path, len(f.items))
	waiting := int64(0)
	before, _ := f.others(caps)
	for at := len(f.events) - 1; at >= 0; at-- {
		e := f.events[at]
		if e.item < 0 {
			continue
		}
		if !e.backward {
			waiting -= held[e.item]
			continue
		}
		shares := f.shared(paths, e.item) // of a stage whose backward comes later
		r := available{forward: f.limit - before[e.item] + shares, held: caps[e.item] + shares, backward: f.limit - e.fixed - waiting + shares}
		p := f.reused(paths, e.item, r)
		if p == nil {
			p = f.path(e.item, r)
		}
		if p == nil {
			return nil
		}
		paths[e.item], held[e.item] = p, p.held-shares
		waiting += held[e.item]
	}
	return paths
}

// reused is the plan of the next micro-batch, if that recomputes nothing and fits as well.
func (f *microBatches) reused(paths []*path, i int, r available) *path {
	if it := &f.items[i]; it.side == nil || it.microBatch == 0 || it.microBatch == f.k-1 {
		return nil
	}
	if p := paths[i+1]; p != nil && f.items[i].side == f.items[i+1].side && p.extra == 0 && p.fits(r) && r.forward >= f.items[i].forward && r.backward >= f.items[i].backward {
		return p
	}
	return nil
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

// improve plans one item after the other anew with the bytes that the others leave, as long as that
// helps.
func (f *microBatches) improve(paths []*path) {
	for range improvements {
		before := extra(paths)
		for i := range paths {
			was := paths[i]
			p := f.path(i, f.left(paths, i))
			if p == nil || p == was || p.t == nil || !p.better(was) {
				continue
			}
			// A stage that continues this one may now have an input of its own.
			if paths[i] = p; f.items[i].side != nil && len(f.stages) > 1 && f.peak(paths) > f.limit {
				paths[i] = was
			}
		}
		if extra(paths) >= before {
			return
		}
	}
}

// improvements is how often improve goes through all items at most.
const improvements = 4
