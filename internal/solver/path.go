package solver

import "penstock.example/remat"

// path is a plan under construction. It counts bytes as the recurrence does, so its peak is exact
// whatever guides the choices.
type path struct {
	t   *terms
	ops []remat.Op
	// resident is the bytes of kept values, without x(0), and of parameters' gradients. The interval's
	// |y| comes on top.
	resident, peak int64
	peakOp         int     // the first operation at the peak
	extra          float64 // time beyond t.once
	recomputed     int     // forwards without gradients
	leaves         int64   // bytes of x(L), which leaves the stage before the loss; 0 if it is part of X(L)
	early, late    int64   // peaks before the loss, and from the loss on
	held           int64   // bytes that wait for the loss
	lossDone       bool
}

func newPath(t *terms) *path { return &path{t: t, ops: make([]remat.Op, 0, 4*t.n+1)} }

// do writes an operation. bytes are its own, beyond the resident ones.
func (p *path) do(o remat.Op, bytes int64) {
	most := p.t.chain.Input + p.resident + bytes
	if most > p.peak {
		p.peak, p.peakOp = most, len(p.ops)
	}
	if o.Kind == remat.LossStep {
		p.lossDone, p.held = true, p.t.chain.Input+p.resident-p.leaves
	}
	if p.lossDone {
		p.late = max(p.late, most)
	} else {
		p.early = max(p.early, most)
	}
	p.ops = append(p.ops, o)
}

// plan returns the finished path as a plan. No plan takes less time than bound.
func (p *path) plan(limit int64, bound float64) remat.Plan {
	time := p.t.once + p.extra
	return remat.Plan{Feasible: true, Limit: limit, Peak: p.peak, Time: time, LowerBound: min(bound, time),
		Ops: p.ops, Chain: p.t.chain.Fingerprint()}
}

// save writes forward_save i of (i, l), or the loss.
func (p *path) save(i, l int) {
	if i == p.t.n {
		p.do(remat.Op{Kind: remat.LossStep}, p.t.loss)
		return
	}
	layer := &p.t.chain.Layers[i]
	p.do(remat.Op{Kind: remat.ForwardSave, Layer: i}, p.t.yHeld[l+1]+layer.Saved+layer.ForwardTmp)
	p.resident += layer.Saved
}

// backward writes the backward of layer i. The loss has its backward in its own operation.
func (p *path) backward(i int) {
	if i == p.t.n {
		return
	}
	layer := &p.t.chain.Layers[i]
	p.do(remat.Op{Kind: remat.Backward, Layer: i},
		p.t.y[i+1]+p.t.made[i]+layer.WeightGradient+layer.BackwardTmp-layer.BackwardEarly)
	p.resident += layer.WeightGradient - layer.Saved
}

// compute writes the forwards without gradients from x(i) to x(j), and keeps both. y(l+1) is held.
func (p *path) compute(i, j, l int) {
	kind, before := remat.ForwardKeep, int64(0)
	for k := i; k < j; k++ {
		layer := &p.t.chain.Layers[k]
		p.do(remat.Op{Kind: kind, Layer: k}, p.t.yHeld[l+1]+before+layer.Output+layer.ForwardNoGradTmp)
		kind, before = remat.Forward, p.t.kept(i, k+1)
	}
	p.resident += before
	if j == p.t.n {
		p.leaves = before
	}
	p.extra += p.t.nograd[j] - p.t.nograd[i]
	p.recomputed += j - i
}

// release drops x(j), which compute(i, j, ·) has kept, after its backward.
func (p *path) release(i, j int) { p.resident -= p.t.kept(i, j) }

// all writes (i, l) without recomputation.
func (p *path) all(i, l int) {
	for k := i; k <= l; k++ {
		p.save(k, l)
	}
	for k := l; k >= i; k-- {
		p.backward(k)
	}
}
