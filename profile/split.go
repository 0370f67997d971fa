package profile

import (
	"slices"

	"penstock.example/remat"
	"penstock.example/torch"
)

// split measures a backward of a unit in two parts, on copies of the unit's input and gradients. So
// memory left to the second part counts as the unit's own, although neighbours may hold some of it:
// the bytes are upper bounds. The batch is not copied, as it is held in any case.
func (w *sweep) split(i int, kind remat.BackwardKind) remat.UnitBackward {
	u, e := &w.units[i], w.execution()
	before, grads := w.live(), gradBytes(u.list)
	var lent int64 // bytes by which memory is larger than its tensors' copies
	own := func(t *torch.Tensor) *torch.Tensor {
		clone := w.c.Keep(w.c.Clone(t))
		w.drops = append(w.drops, clone.Free)
		_, bytes := t.Storage()
		_, copied := clone.Storage()
		lent += max(bytes-copied, 0)
		return clone
	}
	in := w.held[i]
	var xs []*torch.Tensor
	if i == 0 {
		xs = w.shared(in.xs)
	} else {
		xs = mapped(in.xs, own)
	}
	e.Send(i, w.arrival(i, input{xs, mapped(in.skips, own)}))
	e.Again(i)
	w.do(e, remat.Op{Kind: remat.ForwardSave, Layer: i})
	g := w.gradients(kind, i+1)
	skips := make([][]*torch.Tensor, len(g.skips))
	for place, pops := range g.skips {
		skips[place] = mapped(pops, own)
	}
	e.GiveGrads(i+1, mapped(g.xs, own), skips)
	for k, t := range g.ties {
		if t != nil {
			e.GiveTie(k, own(t))
		}
	}
	e.Defer = true
	out := remat.UnitBackward{Peak: w.do(e, remat.Op{Kind: remat.Backward, Layer: i}).peak,
		Weights: gradBytes(u.list) - grads}
	if e.Deferred() == 0 {
		return out
	}
	xs, skips = e.TakeGrads(i)
	torch.FreeAll(slices.Concat(append(skips, xs)...))
	xs, passing := e.Take(i + 1) // such as skips that go on
	torch.FreeAll(slices.Concat(xs, passing))
	for k := range w.s.Ties() {
		e.TakeTie(k).Free()
	}
	out.Left = w.live() - before - out.Weights + lent
	out.LeftPeak = w.read(func() { e.Weights(w.c) }).peak
	out.LeftWeights = gradBytes(u.list) - grads - out.Weights
	return out
}
