package profile

import (
	"slices"

	"penstock.example/remat"
	"penstock.example/torch"
)

// split measures a backward of a unit in two parts. Its bytes are upper bounds: memory left to the
// second part counts as the unit's own, although neighbours may hold some of it too. So it runs on
// copies of the unit's input and gradients, which nothing else holds.
func (w *sweep) split(st *stage, i int, kind remat.BackwardKind) remat.UnitBackward {
	u, e := &w.units[i], w.execution()
	before, grads := w.live(), gradBytes(u.list)
	held := map[uintptr]bool{} // the batch
	for _, x := range w.held[0].xs {
		id, _ := x.Storage()
		held[id] = true
	}
	var lent int64 // bytes without a copy, which the second part may need
	copies := map[uintptr]*torch.Tensor{}
	own := func(t *torch.Tensor) *torch.Tensor {
		id, bytes := t.Storage()
		switch one := copies[id]; {
		case held[id]:
		case one != nil && slices.Equal(one.Shape(), t.Shape()) && one.IsContiguous() && t.IsContiguous():
			t = one
		case bytes == t.Numel()*t.DType().Size():
			copies[id] = w.owned(w.c.Keep(w.c.Clone(t))) // the next copy may fail
			return copies[id]
		default: // a copy would lie otherwise
			held[id], lent = true, lent+bytes
		}
		return w.owned(w.c.Keep(w.c.Share(t)))
	}
	in := w.held[i]
	e.Send(i, w.arrival(i, input{mapped(in.xs, own), mapped(in.skips, own)}))
	e.Again(i)
	w.do(e, remat.Op{Kind: remat.ForwardSave, Layer: i})
	clear(copies)
	g := w.gradients(kind, i+1).mapped(own)
	e.GiveGrads(i+1, g.xs, g.skips)
	for k, t := range g.ties {
		e.GiveTie(k, t)
	}
	e.Defer = true
	first := w.do(e, remat.Op{Kind: remat.Backward, Layer: i})
	out := remat.UnitBackward{Peak: first.peak, Weights: gradBytes(u.list) - grads}
	if e.Deferred() == 0 {
		return out
	}
	xs, skips := e.TakeGrads(i)
	torch.FreeAll(slices.Concat(append(skips, xs)...))
	xs, passing := e.Take(i + 1) // such as skips that go on
	torch.FreeAll(slices.Concat(xs, passing))
	for k := range w.s.Ties() {
		e.TakeTie(k).Free()
	}
	out.Left = w.live() - before - out.Weights + lent
	second := w.read(func() { e.Weights(w.c) })
	out.LeftPeak, out.LeftWeights = second.peak, gradBytes(u.list)-grads-out.Weights
	if second.took > 0 && !w.BytesOnly {
		u.share = second.took.Seconds() / (first.took + second.took).Seconds()
	}
	return out
}
