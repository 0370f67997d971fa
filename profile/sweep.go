package profile

import (
	"slices"

	"penstock.example/internal/engine"
	"penstock.example/internal/segment"
	"penstock.example/nn"
	"penstock.example/remat"
	"penstock.example/torch"
)

// sweep measures the bytes of units: forwards over the whole model, then backwards from its last
// unit to its first. So every backward gets the true gradients, with their layout and the memory
// that they share. Stages get copies, as on another device.
type sweep struct {
	*prober
	units  []unit
	stages []*stage
	tuples []int // by boundary: elements of the tuple

	in, next input         // of the unit that runs, and of the next one
	held     map[int]input // by unit: kept inputs; the others are computed again from them
	// between holds the gradients between units, for remat.Makes and remat.Adds. Their values do
	// not matter. They have memory only while their unit is measured.
	between [2]segment.Execution
}

// stage is the units first <= i < last.
type stage struct {
	first, last int
	values      blocks
	grads       [2]blocks // as sweep.between
	ties        []int     // of the segment, in the order of their first use in the stage
	released    []bool    // see remat.Footprint
}

// unit is a unit with its measurements.
type unit struct {
	name     string
	layer    int // the first
	list     []nn.NamedLayer
	bytes    remat.UnitBytes
	saved    int64                 // left by a forward with gradients, output included
	commit   int64                 // the peak when the statistics of deferred batch norms are applied
	isFrozen bool                  // it has no backward
	backs    [4]remat.UnitBackward // by remat.BackwardKind
}

// input is the input of a unit, which owns its tensors.
type input struct{ xs, skips []*torch.Tensor }

func (b input) mapped(f func(x *torch.Tensor) *torch.Tensor) input {
	return input{engine.Mapped(b.xs, f), engine.Mapped(b.skips, f)}
}

func (b *input) free() {
	torch.FreeAll(b.xs)
	torch.FreeAll(b.skips)
	*b = input{}
}

// newSweep cuts the model. units is the number of layers in each unit, by stage.
func (p *prober) newSweep(units [][]int, sample []*torch.Tensor) *sweep {
	w := &sweep{prober: p, held: map[int]input{}}
	p.cut(slices.Concat(units...))
	layer := 0
	for _, counts := range units {
		st := &stage{first: len(w.units), last: len(w.units) + len(counts)}
		for _, b := range []*blocks{&st.values, &st.grads[0], &st.grads[1]} {
			b.At = make([][]int, len(counts)+1)
		}
		for _, n := range counts {
			for _, k := range p.s.Uses(len(w.units)) {
				if !slices.Contains(st.ties, k) {
					st.ties = append(st.ties, k)
				}
			}
			u := unit{layer: layer, list: p.layers[layer : layer+n], name: p.layers[layer].Name}
			if layer += n; n > 1 {
				u.name += ".." + u.list[n-1].Name
			}
			w.units = append(w.units, u)
		}
		w.stages = append(w.stages, st)
	}
	w.tuples = make([]int, len(w.units)+1)
	for k := range w.between {
		w.between[k].Begin(p.s, p.context)
	}
	w.in = p.sampleInput(sample)
	return w
}

func (w *sweep) free() {
	w.in.free()
	w.next.free()
	w.reset()
	for _, in := range w.held {
		in.free()
	}
	for k := range w.between {
		w.between[k].Free()
	}
}

// kinds are the whole backwards.
var kinds = []remat.BackwardKind{remat.Makes, remat.Adds}

// areApart says whether two stages are on different devices, between which everything is copied.
func (w *sweep) areApart(a, b int) bool { return w.Workers == nil || w.Workers[a] != w.Workers[b] }

func (w *sweep) stageOf(unit int) int {
	return slices.IndexFunc(w.stages, func(st *stage) bool { return unit < st.last })
}

// run runs f with the layers of a unit ready to run. Its panics are failures of the unit.
func (w *sweep) run(i int, f func()) {
	check(attempt(func() string { return w.units[i].name }, func() {
		defer w.reset()
		for _, l := range w.units[i].list {
			w.ready(l)
		}
		f()
	}))
	check(w.ctx.Err())
}

// forwards measures the forwards of all units, from the model's input.
func (w *sweep) forwards() {
	for number, st := range w.stages {
		for i := st.first; i < st.last; i++ {
			w.tell(float64(i) / float64(len(w.units)))
			w.run(i, func() {
				if w.tuples[i] = len(w.in.xs); i == st.first {
					w.enter(st, number)
				}
				w.forward(st, i)
			})
		}
	}
	w.in.free()
}

// enter begins a stage: its input is a copy of the output of the stage before.
func (w *sweep) enter(st *stage, number int) {
	n := w.elements(st, st.first)
	if number > 0 && w.areApart(number-1, number) {
		w.replace(w.in.xs)
	}
	for k, place := range n.places {
		if w.areApart(w.stageOf(n.stash[k]), number) {
			w.replace(w.in.skips[place : place+1])
		}
	}
	st.values.note(0, n.values(w.in), nil)
	w.held[st.first] = w.in.mapped(w.handle)
}

// replace replaces tensors by copies, as another device gets them.
func (w *sweep) replace(list []*torch.Tensor) {
	copies := w.copied(list)
	torch.FreeAll(list)
	copy(list, copies)
}

func (p *prober) copied(list []*torch.Tensor) []*torch.Tensor {
	copies := engine.Mapped(list, p.c.CopyHere)
	engine.Mapped(copies, p.c.Keep) // after all copies, as one that fails would leave the others
	return copies
}

// forward measures the forwards of a unit, and makes its output the next input. After the last unit
// it makes the output's gradients.
func (w *sweep) forward(st *stage, i int) {
	u := &w.units[i]
	u.bytes.Save = w.forwardPeaks(i, remat.ForwardSave, func(e *segment.Execution, _, again reading) {
		u.saved, u.isFrozen, st.released = again.delta, !requiresGrad(e.Saved(i)), w.release(e, st, i)
		if i == len(w.units)-1 {
			for _, kind := range kinds {
				w.giveOnes(&w.between[kind], e, 0, i+1)
				engine.Hollow(w.gradients(kind, i+1).all())
			}
		}
	})
	u.bytes.Keep = w.forwardPeaks(i, remat.ForwardKeep, func(e *segment.Execution, first, again reading) {
		w.next.xs, w.next.skips = e.Take(i + 1)
		w.tuples[i+1] = len(w.next.xs)
		if u.bytes.Statistics = max(first.delta-again.delta, 0); u.bytes.Statistics > 0 {
			u.commit = w.read(func() { w.deferred.Commit(nn.NewCtx(w.c, nn.Config{})) }).peak
		}
	})
	st.values.note(i+1-st.first, w.elements(st, i+1).values(w.next), w.weights(u.list))
	w.in.free()
	w.in, w.next = w.next, input{}
}

// release drops the output of a stage's last unit, as a pipe does once it is sent. gone says, by
// element, whether its memory is free. Nothing happens after other units and at the model's end.
func (w *sweep) release(e *segment.Execution, st *stage, i int) (gone []bool) {
	if i < st.last-1 || i == len(w.units)-1 {
		return nil
	}
	xs, _ := e.Saved(i)
	xs = slices.Clone(xs)
	for k, x := range xs {
		if first := slices.Index(xs[:k], x); first >= 0 {
			gone = append(gone, gone[first])
			continue
		}
		live := w.live()
		e.Release(w.c, i, k)
		gone = append(gone, w.live() < live)
	}
	return gone
}

// forwardPeaks returns the peaks of a unit's forwards: in the first micro-batch, in a later one,
// and repeated. Only a repetition leaves running statistics as they are. The first micro-batch
// begins deferred statistics, and later ones add to them. last is called after the repetition.
func (w *sweep) forwardPeaks(i int, kind remat.Kind, last func(e *segment.Execution, first, again reading)) (
	peaks [remat.ForwardRuns]int64) {
	w.deferred = new(nn.Deferred)
	defer w.deferred.Free()
	var first reading
	for run := range remat.ForwardRuns {
		if run == remat.FirstOfBatch && !w.DeferredBatchNorm {
			peaks[run] = peaks[remat.FirstOfStep]
			continue
		}
		e := w.execute(i, w.in.mapped(w.handle), run == remat.Again)
		r := w.do(e, remat.Op{Kind: kind, Layer: i})
		if peaks[run] = r.peak; run == remat.FirstOfStep {
			first = r
		}
		if run == remat.Again {
			last(e, first, r)
		}
		e.Free()
	}
	return peaks
}

func (w *sweep) backwards() {
	for number, st := range slices.Backward(w.stages) {
		for _, kind := range kinds {
			list := w.gradients(kind, st.last).list(w.elements(st, st.last))
			st.grads[kind].note(st.last-st.first, list, nil)
		}
		if w.descend(st, st.first, st.last); number > 0 {
			w.run(st.first, func() { w.depart(st, number) })
		}
	}
}

// descend measures the backwards of units from <= i < to, the last first. The input of unit from is
// held. descend also holds the middle unit's input for the upper half. For n units there are
// log2(n) inputs held, and a unit runs forward log2(n)/2 times. A lean sweep computes each input
// from the first.
func (w *sweep) descend(st *stage, from, to int) {
	if to-from == 1 {
		w.backward(st, from)
		return
	}
	middle := (from + to) / 2
	if w.isLean {
		middle = to - 1
	}
	w.in = w.held[from].mapped(w.handle)
	for i := from; i < middle; i++ {
		w.run(i, func() {
			e := w.execute(i, w.in.mapped(w.handle), true)
			w.do(e, remat.Op{Kind: remat.ForwardKeep, Layer: i})
			w.in.free()
			w.in.xs, w.in.skips = e.Take(i + 1)
		})
	}
	w.held[middle], w.in = w.in, input{}
	w.descend(st, middle, to)
	w.descend(st, from, middle)
}

func (w *sweep) backward(st *stage, i int) {
	w.tell(float64(len(w.units)-1-i) / float64(len(w.units)))
	w.run(i, func() {
		for _, kind := range kinds {
			engine.Refill(w.c, w.gradients(kind, i+1).all())
			w.backwardOf(st, i, kind)
			engine.Hollow(w.gradients(kind, i).all())
		}
	})
	in := w.held[i]
	in.free()
	delete(w.held, i)
}

// backwardOf measures a unit's backwards of a kind, and leaves the gradients of its input.
func (w *sweep) backwardOf(st *stage, i int, kind remat.BackwardKind) {
	u := &w.units[i]
	var zeroed []nn.NamedLayer
	if kind == remat.Makes {
		zeroed = u.list
	}
	if zeroGrads(zeroed); w.Split {
		u.backs[kind+remat.MakesLater] = w.split(st, i, kind)
		zeroGrads(zeroed)
	}
	// backward frees the gradients; no new memory may get their identity until the unit is measured
	for _, t := range w.gradients(kind, i+1).all() {
		if t != nil {
			w.undo = append(w.undo, engine.HoldStorage(t))
		}
	}
	before, e := gradBytes(u.list), &w.between[kind]
	in := w.held[i].mapped(w.handle)
	e.Send(i, segment.Arrival{Tensors: in.xs, Skips: in.skips})
	e.Again(i)
	w.do(e, remat.Op{Kind: remat.ForwardSave, Layer: i})
	w.release(e, st, i)
	peak := w.do(e, remat.Op{Kind: remat.Backward, Layer: i}).peak
	u.backs[kind] = remat.UnitBackward{Peak: peak, Weights: gradBytes(u.list) - before}
	st.grads[kind].note(i-st.first, w.gradients(kind, i).list(w.elements(st, i)), w.weights(u.list))
}

// depart replaces the gradients of a stage's input by copies, as other devices get them.
func (w *sweep) depart(st *stage, number int) {
	n := w.elements(st, st.first)
	for _, kind := range kinds {
		g := w.gradients(kind, st.first)
		engine.Refill(w.c, g.all())
		if w.areApart(number-1, number) {
			w.replace(g.xs)
		}
		for k, place := range n.places {
			if place < len(g.skips) && w.areApart(w.stageOf(n.stash[k]), number) {
				w.replace(g.skips[place][:min(n.pops[k], len(g.skips[place]))])
			}
		}
		for _, k := range n.ties {
			user := number - 1
			for !slices.Contains(w.stages[user].ties, k) {
				user--
			}
			if w.areApart(user, number) {
				w.replace(g.ties[k : k+1])
				w.between[kind].GiveTie(k, g.ties[k])
			}
		}
		engine.Hollow(g.all())
	}
}
