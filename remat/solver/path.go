package solver

import (
	"penstock/remat"
)

// path is a plan being written: operations in order with what they cost, by the same arithmetic as
// the recurrence but on the bytes themselves. It adds up what is resident, so the peak is exact
// whatever table has advised the choices.
type path struct {
	t   *terms
	ops []remat.Op
	// resident is what is there beside x(0): what is kept, and the gradients of parameters. |y| of
	// the interval at work is added where it counts.
	resident, peak int64
	peakOp         int     // the first operation at the peak
	extra          float64 // time beyond t.once
	recomputed     int     // forwards without gradients
	early, held    int64   // the peak before the loss, and what waits for it; see wait
	late           int64   // the peak from the loss on
	afterwards     bool    // the loss is written
}

func newPath(t *terms) *path { return &path{t: t, ops: make([]remat.Op, 0, 4*t.n+1)} }

// do writes an operation that takes so many bytes beside what is resident.
func (p *path) do(o remat.Op, bytes int64) {
	most := p.t.chain.Input + p.resident + bytes
	if most > p.peak {
		p.peak, p.peakOp = most, len(p.ops)
	}
	p.afterwards = p.afterwards || o.Kind == remat.LossStep
	if p.afterwards {
		p.late = max(p.late, most)
	}
	p.ops = append(p.ops, o)
}

// wait says that the loss comes next, and that so many bytes of what is resident, those of x(L)
// alone, are not held up to then.
func (p *path) wait(leaves int64) {
	p.early, p.held = p.peak, p.t.chain.Input+p.resident-leaves
}

// plan is the finished path, which no plan is below bound of.
func (p *path) plan(limit int64, bound float64) remat.Plan {
	time := p.t.once + p.extra
	return remat.Plan{Feasible: true, Limit: limit, Peak: p.peak, Time: time, LowerBound: min(bound, time), Ops: p.ops, Chain: p.t.chain.Fingerprint()}
}

// save writes forward_save i of (i, l), or the loss.
func (p *path) save(i, l int) {
	if i == p.t.n {
		p.do(remat.Op{Kind: remat.LossStep}, p.t.y[i]+p.t.chain.Loss.Tmp)
		return
	}
	layer := &p.t.chain.Layers[i]
	p.do(remat.Op{Kind: remat.ForwardSave, Layer: i}, p.t.y[l+1]+layer.Saved+layer.ForwardTmp)
	p.resident += layer.Saved
}

// backward writes the backward that save(i, l) asks for; nothing of the loss.
func (p *path) backward(i int) {
	if i == p.t.n {
		return
	}
	layer := &p.t.chain.Layers[i]
	p.do(remat.Op{Kind: remat.Backward, Layer: i}, p.t.y[i+1]+p.t.made[i]+layer.WeightGradient+layer.BackwardTmp-layer.BackwardEarly)
	p.resident += layer.WeightGradient - layer.Saved
}

// compute writes the forwards without gradients from x(i), which stays, to x(j), which is kept
// then; y(l+1) is there.
func (p *path) compute(i, j, l int) {
	kind, before := remat.ForwardKeep, int64(0)
	for k := i; k < j; k++ {
		layer := &p.t.chain.Layers[k]
		p.do(remat.Op{Kind: kind, Layer: k}, p.t.y[l+1]+before+layer.Output+layer.ForwardNoGradTmp)
		kind, before = remat.Forward, p.t.kept(i, k+1)
	}
	p.resident += before
	p.extra += p.t.nograd[j] - p.t.nograd[i]
	p.recomputed += j - i
}

// release says that x(j), kept by compute(i, j, ·), has gone with its backward.
func (p *path) release(i, j int) { p.resident -= p.t.kept(i, j) }

// all writes (i, l) without a recomputation.
func (p *path) all(i, l int) {
	for k := i; k <= l; k++ {
		p.save(k, l)
	}
	for k := l; k >= i; k-- {
		p.backward(k)
	}
}
