package profile

import (
	"slices"

	"penstock.example/internal/segment"
	"penstock.example/remat"
	"penstock.example/torch"
)

// split measures a backward of a unit in two parts, on copies of the unit's input and gradients that
// share memory as the originals do. So memory left to the second part counts as the unit's own, although
// neighbours may hold some of it too: the bytes are upper bounds. The batch is not copied, as it is held
// in any case.
func (w *sweep) split(st *stage, i int, kind remat.BackwardKind) remat.UnitBackward {
	u, e := &w.units[i], w.execution()
	before, grads := w.live(), gradBytes(u.list)
	held := map[uintptr]bool{} // the batch, and memory without a copy
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
			t = w.c.Share(t)
		case one != nil && slices.Equal(one.Shape(), t.Shape()):
			t = w.c.Share(one)
		case bytes == t.Numel()*t.DType().Size():
			t = w.c.Clone(t)
			copies[id] = t
		default: // a copy would lie otherwise
			held[id], lent = true, lent+bytes
			t = w.c.Share(t)
		}
		w.undo = append(w.undo, w.c.Keep(t).Free)
		return t
	}
	in := w.held[i].mapped(own)
	e.Send(i, segment.Arrival{Tensors: in.xs, Skips: in.skips})
	e.Again(i)
	w.do(e, remat.Op{Kind: remat.ForwardSave, Layer: i})
	w.release(e, st, i)
	clear(copies)
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
	xs, passed := e.TakeGrads(i)
	torch.FreeAll(slices.Concat(append(passed, xs)...))
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
