package profile

import (
	"slices"

	"penstock.example/internal/engine"
	"penstock.example/remat"
	"penstock.example/torch"
)

// split measures a backward of a unit in two parts, on copies of the unit's input and gradients
// that share memory as the originals do. All memory left to the second part then counts for this
// unit, although neighbours may hold some of it: the bytes are upper bounds. The batch is not
// copied, as it is held in any case.
func (w *sweep) split(st *stage, i int, kind remat.BackwardKind) remat.UnitBackward {
	u := &w.units[i]
	before, grads := w.live(), gradBytes(u.list)
	held := map[uintptr]bool{} // the batch, and memory without a copy
	for _, x := range w.held[0].xs {
		id, _ := x.Storage()
		held[id] = true
	}
	var notCopied int64 // bytes that the second part may need
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
		default: // a copy would have another layout
			held[id], notCopied = true, notCopied+bytes
			t = w.c.Share(t)
		}
		w.undo = append(w.undo, w.c.Keep(t).Free)
		return t
	}
	e := w.execute(i, w.held[i].mapped(own), true)
	w.do(e, remat.Op{Kind: remat.ForwardSave, Layer: i})
	w.release(e, st, i)
	clear(copies)
	g := w.gradients(kind, i+1)
	skips := make([][]*torch.Tensor, len(g.skips))
	for place, pops := range g.skips {
		skips[place] = engine.Mapped(pops, own)
	}
	e.GiveGrads(i+1, engine.Mapped(g.xs, own), skips)
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
	out.Left = w.live() - before - out.Weights + notCopied
	out.LeftPeak = w.read(func() { e.Weights(w.c) }).peak
	out.LeftWeights = gradBytes(u.list) - grads - out.Weights
	return out
}
