package solver

import (
	"context"
	"slices"

	"penstock.example/remat"
)

// microBatches are those of all stages of a device.
type microBatches struct {
	limit  int64
	fewest bool // the limit is to be the least that has plans
	stages []Stage
	k      int     // micro-batches of a stage
	sides  []*side // all that there are
	items  []item  // at stage*k + micro-batch
	events []event // in order
	known  map[pathKey]*path
	// What backward knows, and the memory that it uses.
	fewestBackward map[backwardKey]int64
	probe          spine
}

// item is a micro-batch on a stage.
type item struct {
	stage, microBatch int
	side              *side // nil where nothing is trained
	// forward and backward are the fewest bytes that these take.
	forward, backward int64
	// continues is the item whose x(L) is this one's x(0), or -1, and shares the bytes of it.
	continues int
	shares    int64
}

// event is a forward or a backward, or a moment between such.
type event struct {
	item     int // -1 of a moment
	backward bool
	fixed    int64 // bytes of what waits, and of gradients of parameters that other micro-batches made
}

// side is a chain, of the first micro-batch of a stage or of the later ones, with what the solvers
// know of it.
type side struct {
	t     *terms
	b     *bounds
	plain *path
	steps *steps // nil where there would be too many
	above *grid  // achievable
	below *grid  // optimistic
}

// pathKey is what a plan of a side depends on.
type pathKey struct {
	side *side
	available
}

func newMicroBatches(d Device) *microBatches {
	f := &microBatches{limit: d.Limit, stages: d.Stages, k: d.MicroBatches, known: map[pathKey]*path{}, fewestBackward: map[backwardKey]int64{}}
	for at, s := range d.Stages {
		var first, later, fewer *side
		if len(s.First.Layers) > 0 {
			first = f.side(newTermsOf(s.First, s.Receives))
			later = f.side(newTermsOf(s.Later, s.Receives))
			if d.smaller() {
				fewer = f.side(newTermsOf(s.Fewer, s.Receives))
			}
		}
		for b := range d.MicroBatches {
			i := item{stage: at, microBatch: b, side: later, continues: -1}
			switch {
			case b == 0:
				i.side = first
			case d.smaller() && b >= d.Larger:
				i.side = fewer
			}
			if s.Continues && i.side != nil && f.items[(at-1)*f.k+b].side != nil {
				i.continues, i.shares = (at-1)*f.k+b, i.side.t.chain.Input
			}
			f.items = append(f.items, i)
		}
	}
	made := int64(0)
	for _, c := range d.order() {
		if c.Stage == Between {
			f.events = append(f.events, event{item: -1, fixed: c.Waits + made})
			continue
		}
		at := c.Stage*f.k + c.MicroBatch
		f.events = append(f.events, event{item: at, backward: c.Backward, fixed: c.Waits + made})
		if c.Backward {
			f.items[at].backward = c.AtLeast
		} else {
			f.items[at].forward = c.AtLeast
		}
		if s := f.items[c.Stage*f.k].side; c.Backward && c.MicroBatch == 0 && s != nil {
			made += s.t.gradSum[s.t.n]
		}
	}
	return f
}

// side is the side of terms, one for all chains that are the same.
func (f *microBatches) side(t *terms) *side {
	print := t.chain.Fingerprint()
	for _, s := range f.sides {
		if s.t.n == t.n && s.t.loss == t.loss && s.t.under[t.n] == t.under[t.n] && s.t.chain.Fingerprint() == print {
			return s
		}
	}
	s := newSide(t)
	s.b = newBounds(t)
	f.sides = append(f.sides, s)
	return s
}

func newSide(t *terms) *side { return &side{t: t} }

// longest is the number of layers of the longest stage.
func (f *microBatches) longest() (n int) {
	for _, s := range f.sides {
		n = max(n, s.t.n)
	}
	return n
}

// path is a plan of an item within the bytes that it has available: the fastest if there are steps,
// nil if there is none.
func (f *microBatches) path(i int, r available) *path {
	it := &f.items[i]
	if r.forward < it.forward || r.held < 0 || r.backward < it.backward {
		return nil
	}
	if it.side == nil {
		return nothing
	}
	key := pathKey{it.side, r}
	p, ok := f.known[key]
	if !ok {
		p = it.side.path(r)
		f.known[key] = p
	}
	return p
}

// nothing is the plan of a micro-batch on a stage of which nothing is trained.
var nothing = &path{}

func (s *side) path(r available) *path {
	on := newSpine(s.t, s.b, r)
	switch {
	case !on.feasible():
		return nil
	case s.steps != nil:
		advice := newSpineFronts(s.steps, on)
		return on.path(advice, advice.fronts[0].fewest(on.most()))
	}
	return on.path(newSpineRows(s.above, on), on.most())
}

// fits reports whether the plan, which has been written for a stage, stays within r.
func (p *path) fits(r available) bool {
	return p.early <= r.forward && p.held <= r.held && p.after() <= r.backward
}

// plain is the plans without recomputation.
func (f *microBatches) plain() []*path {
	paths := make([]*path, len(f.items))
	for i := range f.items {
		s := f.items[i].side
		switch {
		case s == nil:
			paths[i] = nothing
			continue
		case s.plain == nil:
			s.plain = newPath(s.t)
			s.plain.all(0, s.t.n)
		}
		paths[i] = s.plain
	}
	return paths
}

// own is the bytes that an item takes at a forward (early), while it waits (held) and at its
// backward (late). Memory that it has in common with the stage before counts there.
func (f *microBatches) own(paths []*path, i int) (early, held, late int64) {
	it, p := &f.items[i], paths[i]
	shares := f.shared(paths, i)
	return max(it.forward, p.early-shares), p.held - shares, max(it.backward, p.after()-shares)
}

// shared is the bytes of an item's x(0) that are a part of what the stage before holds.
func (f *microBatches) shared(paths []*path, i int) int64 {
	if it := &f.items[i]; it.continues >= 0 && paths[it.continues] != nil && paths[it.continues].savesOutput() {
		return it.shares
	}
	return 0
}

// savesOutput says that x(L) is held as a part of X(L).
func (p *path) savesOutput() bool { return p.t != nil && p.leaves == 0 && p.held > 0 }

// left is the bytes that the others leave to an item: at its forward, at its backward, and in every
// moment in between.
func (f *microBatches) left(paths []*path, i int) available {
	r := available{held: 1 << 60}
	waiting, inside := int64(0), false // of the others
	for _, e := range f.events {
		free := f.limit - e.fixed - waiting
		if e.item < 0 {
			if inside {
				r.held = min(r.held, free)
			}
			continue
		}
		if e.item == i {
			if inside = !e.backward; inside {
				r.forward = free
			} else {
				r.backward = free
			}
			continue
		}
		early, held, late := f.own(paths, e.item)
		if e.backward {
			waiting -= held
			free += held - late
		} else {
			waiting += held
			free -= early
		}
		if inside {
			r.held = min(r.held, free)
		}
	}
	shares := f.shared(paths, i)
	return available{forward: r.forward + shares, held: r.held + shares, backward: r.backward + shares}
}

// peak is the greatest sum of bytes at any moment.
func (f *microBatches) peak(paths []*path) (most int64) {
	waiting := int64(0)
	for _, e := range f.events {
		if e.item < 0 {
			most = max(most, e.fixed+waiting)
			continue
		}
		early, held, late := f.own(paths, e.item)
		if e.backward {
			waiting -= held
			most = max(most, e.fixed+waiting+late)
		} else {
			most = max(most, e.fixed+waiting+early)
			waiting += held
		}
	}
	return most
}

// extra is the time beyond running everything once.
func extra(paths []*path) (sum float64) {
	for _, p := range paths {
		sum += p.extra
	}
	return sum
}

// once is the time of the plans without recomputation.
func (f *microBatches) once() (sum float64) {
	for _, i := range f.items {
		if i.side != nil {
			sum += i.side.t.once
		}
	}
	return sum
}

// result makes the device's plan. bound is a time beyond once that no plans are below.
func (f *microBatches) result(paths []*path, bound float64) DevicePlan {
	r := DevicePlan{Feasible: true, Limit: f.limit, Peak: f.peak(paths), Time: f.once() + extra(paths)}
	r.LowerBound = min(f.once()+bound, r.Time)
	r.MicroBatches = make([][]MicroBatch, len(f.stages))
	for i, p := range paths {
		it := &f.items[i]
		m := MicroBatch{Ops: p.ops, Time: p.extra, Forward: p.early, Held: p.held, Recompute: p.again, Backward: p.late}
		if p.t != nil {
			m.Time += p.t.once
		}
		if len(p.ops) > 0 && p.atOnce() {
			m.Recompute, m.Backward = 0, p.after()
		}
		r.MicroBatches[it.stage] = append(r.MicroBatches[it.stage], m)
	}
	return r
}

// atOnce says that the first backward follows the loss.
func (p *path) atOnce() bool {
	for at, op := range p.ops {
		if op.Kind == remat.LossStep {
			return p.ops[at+1].Kind == remat.Backward
		}
	}
	return true
}

// isChain says that there is one micro-batch of one stage, and nothing beside it.
func (f *microBatches) isChain() bool {
	if len(f.items) > 1 || f.items[0].side == nil || f.items[0].forward+f.items[0].backward > 0 {
		return false
	}
	return !slices.ContainsFunc(f.events, func(e event) bool { return e.fixed > 0 })
}

// solveChain solves the only micro-batch as Solve does.
func (f *microBatches) solveChain(ctx context.Context, o Options) (DevicePlan, error) {
	p, bound, least, err := solveTerms(ctx, f.items[0].side.t, f.limit, o)
	if err == nil && p == nil && f.fewest {
		f.limit = least
		p, bound, _, err = solveTerms(ctx, f.items[0].side.t, f.limit, o)
	}
	switch {
	case err != nil:
		return DevicePlan{}, err
	case p == nil:
		return DevicePlan{Limit: f.limit, Peak: least}, nil
	}
	return f.result([]*path{p}, bound), nil
}
