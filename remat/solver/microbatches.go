package solver

import (
	"penstock/remat"
)

// microBatches are those of a stage.
type microBatches struct {
	k       int
	limit   int64
	weights int64 // bytes of the gradients of parameters, there after micro-batch 0
	first   *side
	later   *side
}

// side is a chain, of the first micro-batch or of the later ones, with what the solvers know of it.
type side struct {
	t     *terms
	b     *bounds
	steps *steps // nil where there would be too many
	above *grid  // achievable
	below *grid  // optimistic
}

func newMicroBatches(s Stage) *microBatches {
	f := &microBatches{k: s.MicroBatches, limit: s.Limit, first: newSide(s.First), later: newSide(s.Later)}
	f.weights = f.first.t.gradSum[f.first.t.n]
	return f
}

func newSide(c remat.Chain) *side {
	t := newTerms(c)
	return &side{t: t, b: newBounds(t)}
}

// path is a plan within the bytes that a micro-batch has available: the fastest if there are steps,
// nil if there is none.
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
	return p.early <= r.forward && p.held <= r.held && p.late <= r.backward
}

func (f *microBatches) side(b int) *side {
	if b == 0 {
		return f.first
	}
	return f.later
}

// there is the bytes of gradients of parameters that are there from the loss of micro-batch b on
// and are not counted by its own plan.
func (f *microBatches) there(b int) int64 {
	if b == 0 {
		return 0
	}
	return f.weights
}

// plain is the plans without recomputation.
func (f *microBatches) plain() []*path {
	paths := make([]*path, f.k)
	for b := range paths {
		if b > 1 {
			paths[b] = paths[1]
			continue
		}
		t := f.side(b).t
		p := newPath(t)
		for i := range t.n {
			p.save(i, t.n)
		}
		p.wait(0)
		for i := t.n; i >= 0; i-- {
			if i == t.n {
				p.save(i, i)
			}
			p.backward(i)
		}
		paths[b] = p
	}
	return paths
}

// left is the bytes that the others leave to micro-batch b. forward and backward follow from what
// the others hold. held is what b holds now, and what no moment of the others needs.
func (f *microBatches) left(paths []*path, b int) available {
	r := available{forward: f.limit, backward: f.limit - f.there(b)}
	spare := int64(1) << 60
	before := int64(0)
	for k, p := range paths {
		if k > b {
			spare = min(spare, f.limit-before-p.early)
			r.backward -= p.held
		}
		before += p.held
		if k < b {
			r.forward -= p.held
		}
	}
	after := int64(0)
	for k := len(paths) - 1; k >= 0; k-- {
		if k < b {
			spare = min(spare, f.limit-f.there(k)-after-paths[k].late)
		}
		after += paths[k].held
	}
	r.held = paths[b].held + spare
	return r
}

// peak is the greatest sum of bytes at any moment.
func (f *microBatches) peak(paths []*path) int64 {
	most, before := int64(0), int64(0)
	for _, p := range paths {
		most = max(most, before+p.early)
		before += p.held
	}
	for b, p := range paths {
		before -= p.held
		most = max(most, before+p.late+f.there(b))
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
func (f *microBatches) once() float64 { return f.first.t.once + float64(f.k-1)*f.later.t.once }

// result makes the stage's plan. bound is a time beyond once that no plans are below.
func (f *microBatches) result(paths []*path, bound float64) StagePlan {
	r := StagePlan{Feasible: true, Limit: f.limit, Peak: f.peak(paths), Time: f.once() + extra(paths)}
	r.LowerBound = min(f.once()+bound, r.Time)
	for b, p := range paths {
		limit := int64(0)
		if f.limit > 0 {
			r := f.left(paths, b)
			limit = max(r.forward, r.backward)
		}
		r.MicroBatches = append(r.MicroBatches, p.plan(limit, p.t.once))
	}
	return r
}
