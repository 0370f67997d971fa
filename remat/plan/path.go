package plan

// path is a plan being written: operations in order with what they cost, by the same arithmetic as the recurrence but on the bytes themselves. It adds up what is resident, so the peak is exact whatever
// table has advised the choices.
type path struct {
	t   *terms
	ops []Op
	// resident is what is there beside x(0): what is kept, and the gradients of parameters. |y| of the interval at work is added where it counts.
	resident, peak int64
	extra          float64 // time beyond t.once
	recomputed     int     // forwards without gradients
}

func newPath(t *terms) *path { return &path{t: t, ops: make([]Op, 0, 4*t.n+1), peak: t.chain.Input} }

func (p *path) reach(bytes int64) { p.peak = max(p.peak, p.t.chain.Input+p.resident+bytes) }

// plan is the finished path.
func (p *path) plan(limit int64) Plan {
	return Plan{Feasible: true, Limit: limit, Peak: p.peak, Time: p.t.once + p.extra, Ops: p.ops}
}

// save writes forward_save i of (i, l), or the loss.
func (p *path) save(i, l int) {
	if i == p.t.n {
		p.ops = append(p.ops, Op{Kind: LossStep})
		p.reach(p.t.y[i] + p.t.chain.Loss.Tmp)
		return
	}
	layer := &p.t.chain.Layers[i]
	p.ops = append(p.ops, Op{ForwardSave, i})
	p.reach(p.t.y[l+1] + layer.Saved + layer.ForwardTmp)
	p.resident += layer.Saved
}

// backward writes the backward that save(i, ·) asks for; nothing of the loss.
func (p *path) backward(i int) {
	if i == p.t.n {
		return
	}
	layer := &p.t.chain.Layers[i]
	p.ops = append(p.ops, Op{Backward, i})
	p.reach(p.t.y[i+1] + p.t.made[i] + layer.WeightGradient + layer.BackwardTmp)
	p.resident += layer.WeightGradient - layer.Saved
}

// compute writes the forwards without gradients from x(i), which stays, to x(j), which is kept then; y(l+1) is there.
func (p *path) compute(i, j, l int) {
	for k := i; k < j; k++ {
		kind := Forward
		if k == i {
			kind = ForwardKeep
		}
		p.ops = append(p.ops, Op{kind, k})
	}
	p.reach(p.t.sweeping(i, j, l))
	p.resident += p.t.kept(i, j)
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
