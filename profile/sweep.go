package profile

import (
	"slices"

	"penstock.example/internal/engine"
	"penstock.example/internal/segment"
	"penstock.example/nn"
	"penstock.example/remat"
	"penstock.example/torch"
)

// sweep measures the bytes of units: forwards over the whole model, then backwards from its last unit
// to its first. So every backward gets the true gradients, with their layout and the memory that they
// share. Stages get copies, as on another device.
type sweep struct {
	*prober
	units     []unit
	stages    []*stage
	crossings []crossing
	tuples    []int // by boundary: elements of the tuple

	in, next input
	held     map[int]input // by unit: kept inputs; the others are computed again from them
	// back holds the gradients between units, for remat.Makes and remat.Adds. Their values do not
	// matter. They have memory only while their unit is measured.
	back [2]segment.Execution
}

// stage is the units first <= i < last.
type stage struct {
	first, last int
	values      blocks
	grads       [2]blocks // as sweep.back
	ties        []int     // of the segment, in the order of their first use in the stage
	released    []bool    // see remat.Footprint
}

// crossing is a skip between units.
type crossing struct {
	stash int   // the unit that stashes it
	pops  []int // later units that pop it, once for each pop
}

// unit is a unit with its measurements.
type unit struct {
	name     string
	list     []nn.NamedLayer
	bytes    remat.UnitBytes
	saved    int64                 // left by a forward with gradients, output included
	commit   int64                 // the peak when the statistics of deferred batch norms are applied
	isFrozen bool                  // it has no backward
	backs    [4]remat.UnitBackward // by remat.BackwardKind
}

// input is the input of a unit. It owns its tensors.
type input struct{ xs, skips []*torch.Tensor }

func (b *input) free() {
	torch.FreeAll(b.xs)
	torch.FreeAll(b.skips)
	*b = input{}
}

// newSweep cuts the model. units is the number of layers in each unit, by stage.
func (p *prober) newSweep(units [][]int) (w *sweep, err error) {
	w = &sweep{prober: p, held: map[int]input{}}
	counts := slices.Concat(units...)
	if p.s, err = p.segment(counts); err != nil {
		return nil, err
	}
	var unitOf []int // by layer
	for i, n := range counts {
		list := p.layers[len(unitOf) : len(unitOf)+n]
		name := list[0].Name
		if n > 1 {
			name += ".." + list[n-1].Name
		}
		w.units = append(w.units, unit{name: name, list: list})
		unitOf = append(unitOf, slices.Repeat([]int{i}, n)...)
	}
	for _, r := range p.routes {
		c := crossing{stash: unitOf[r.Stash]}
		for _, layer := range r.Pops {
			if unitOf[layer] > c.stash {
				c.pops = append(c.pops, unitOf[layer])
			}
		}
		w.crossings = append(w.crossings, c)
	}
	ties := map[*nn.Param]int{}
	first, layer := 0, 0
	for _, counts := range units {
		n := len(counts)
		st := &stage{first: first, last: first + n}
		for _, b := range []*blocks{&st.values, &st.grads[0], &st.grads[1]} {
			b.At = make([][]int, n+1)
		}
		for _, l := range p.layers[layer : layer+sum(counts)] {
			for _, q := range nn.Shared(l.Layer) {
				k, known := ties[q.Owner()]
				if !known {
					k = len(ties) // as segments number them
					ties[q.Owner()] = k
				}
				if !slices.Contains(st.ties, k) {
					st.ties = append(st.ties, k)
				}
			}
		}
		layer += sum(counts)
		w.stages, first = append(w.stages, st), first+n
	}
	w.tuples = make([]int, len(counts)+1)
	for k := range w.back {
		w.back[k].Begin(p.s, p.context)
	}
	return w, nil
}

func (w *sweep) free() {
	w.in.free()
	w.next.free()
	w.dropHeld()
	for _, in := range w.held {
		in.free()
	}
	for k := range w.back {
		w.back[k].Free()
	}
}

// kinds are the whole backwards.
var kinds = []remat.BackwardKind{remat.Makes, remat.Adds}

// areApart says whether two stages are on different devices, between which everything is copied.
func (w *sweep) areApart(a, b int) bool { return w.Workers == nil || w.Workers[a] != w.Workers[b] }

// stageOf is the stage of a unit.
func (w *sweep) stageOf(unit int) int {
	return slices.IndexFunc(w.stages, func(st *stage) bool { return unit < st.last })
}

// attempt runs f with the layers of a unit ready to run, and makes its panic the error of the unit.
func (w *sweep) attempt(i int, f func()) error {
	return attempt(w.units[i].name, func() error {
		defer w.c.Close()
		defer w.dropHeld()
		for _, l := range w.units[i].list {
			defer w.ready(l)()
		}
		f()
		return w.ctx.Err()
	})
}

// forwards measures the forwards of all units, from the model's input.
func (w *sweep) forwards() error {
	layer := 0
	for number, st := range w.stages {
		for i := st.first; i < st.last; i++ {
			w.tell(float64(layer) / float64(len(w.layers)))
			err := w.attempt(i, func() {
				if w.tuples[i] = len(w.in.xs); i == st.first {
					w.enter(st, number)
				}
				w.forward(st, i)
			})
			if err != nil {
				return err
			}
			layer += len(w.units[i].list)
		}
	}
	return nil
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
	st.values.note(0, nil, n.values(w.in))
	w.held[st.first] = input{w.shared(w.in.xs), w.shared(w.in.skips)}
}

// replace replaces tensors by copies, as another device gets them.
func (w *sweep) replace(list []*torch.Tensor) {
	copies := mapped(list, w.c.CopyHere)
	mapped(copies, w.c.Keep) // after all copies, as one that fails would leave the others
	torch.FreeAll(list)
	copy(list, copies)
}

// forward measures the forwards of a unit, and makes its output the next input. After the last unit it
// makes the output's gradients.
func (w *sweep) forward(st *stage, i int) {
	u := &w.units[i]
	u.bytes.Save = w.runs(i, remat.ForwardSave, func(e *segment.Execution, _, again reading) {
		u.saved, u.isFrozen = again.delta, !requiresGrad(e.Saved(i))
		if xs, _ := e.Saved(i); i == len(w.units)-1 {
			w.giveOnes(xs)
		} else if i == st.last-1 {
			st.released = w.release(e, i)
		}
	})
	u.bytes.Keep = w.runs(i, remat.ForwardKeep, func(e *segment.Execution, first, again reading) {
		w.next.xs, w.next.skips = e.Take(i + 1)
		w.tuples[i+1] = len(w.next.xs)
		if u.bytes.Statistics = max(first.delta-again.delta, 0); u.bytes.Statistics > 0 {
			u.commit = w.read(func() { w.deferred.Commit(nn.NewCtx(w.c, nn.Config{})) }).peak
		}
	})
	known := map[uintptr]int{}
	at := i - st.first
	for k, t := range w.elements(st, i).values(w.in) {
		if t != nil {
			id, _ := t.Storage()
			known[id] = st.values.At[at][k]
		}
	}
	for _, s := range state(u.list) {
		if s.Exists() {
			id, _ := s.Tensor().Storage()
			known[id] = -1
		}
	}
	st.values.note(at+1, known, w.elements(st, i+1).values(w.next))
	w.in.free()
	w.in, w.next = w.next, input{}
}

// release drops the output of a stage, as a pipe does once it is sent. gone says, by element, whether
// its memory is free.
func (w *sweep) release(e *segment.Execution, i int) (gone []bool) {
	xs, _ := e.Saved(i)
	once, at := torch.Distinct(xs)
	freed := map[int]bool{}
	for k := range xs {
		if first := at[k]; once[first] != nil && slices.Index(at, first) == k {
			live := w.live()
			e.Release(w.c, i, k)
			freed[first] = w.live() < live
		}
		gone = append(gone, freed[at[k]])
	}
	return gone
}

// runs runs a unit by remat.Run: in the first micro-batch, in a later one, and repeated. Only a
// repetition leaves running statistics as they are. Deferred statistics begin with the first
// micro-batch, and later ones add to them. last is called after the repetition.
func (w *sweep) runs(i int, kind remat.Kind, last func(e *segment.Execution, first, again reading)) (
	peaks [remat.ForwardRuns]int64) {
	w.deferred = new(nn.Deferred)
	defer w.deferred.Free()
	var first reading
	for run := range remat.ForwardRuns {
		if run == remat.FirstOfBatch && !w.DeferredBatchNorm {
			peaks[run] = peaks[remat.FirstOfStep]
			continue
		}
		e := w.execute(i, w.in, run == remat.Again)
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

// giveOnes gives the model's output gradients, with the layout of ones.
func (w *sweep) giveOnes(ys []*torch.Tensor) {
	for _, kind := range kinds {
		xs := make([]*torch.Tensor, len(ys))
		w.back[kind].GiveGrads(len(w.units), xs, nil)
		for k, y := range ys {
			if y != nil && y.RequiresGrad() && !slices.Contains(ys[:k], y) {
				xs[k] = w.c.Keep(w.c.OnesLike(y))
			}
		}
		engine.Hollow(xs)
	}
}

// backwards measures the backwards of all units.
func (w *sweep) backwards() error {
	for number, st := range slices.Backward(w.stages) {
		for _, kind := range kinds {
			list := w.gradients(kind, st.last).list(w.elements(st, st.last))
			st.grads[kind].note(st.last-st.first, nil, list)
		}
		if err := w.descend(st, st.first, st.last); err != nil {
			return err
		}
		if number > 0 {
			if err := w.attempt(st.first, func() { w.depart(st, number) }); err != nil {
				return err
			}
		}
	}
	return nil
}

// descend measures the backwards of units from <= i < to, the last first. The input of unit from is
// kept. descend keeps the middle unit's input for the upper half: n units have log2(n) kept inputs,
// and a unit runs forward log2(n)/2 times. If little may be held, each input is computed from the
// first.
func (w *sweep) descend(st *stage, from, to int) error {
	if to-from == 1 {
		return w.backward(st, from)
	}
	middle := (from + to) / 2
	if w.isLean {
		middle = to - 1
	}
	if err := w.inputOf(from, middle); err != nil {
		return err
	}
	if err := w.descend(st, middle, to); err != nil {
		return err
	}
	return w.descend(st, from, middle)
}

// inputOf computes a unit's input from the last kept one before it, that of unit from or later, and
// keeps it.
func (w *sweep) inputOf(from, unit int) error {
	for i := from + 1; i <= unit; i++ {
		if _, held := w.held[i]; held {
			from = i
		}
	}
	if from == unit {
		return nil
	}
	w.in = input{w.shared(w.held[from].xs), w.shared(w.held[from].skips)}
	for i := from; i < unit; i++ {
		err := w.attempt(i, func() {
			e := w.execute(i, w.in, true)
			w.do(e, remat.Op{Kind: remat.ForwardKeep, Layer: i})
			w.in.free()
			w.in.xs, w.in.skips = e.Take(i + 1)
		})
		if err != nil {
			return err
		}
	}
	w.held[unit], w.in = w.in, input{}
	return nil
}

// backward measures the backwards of a unit.
func (w *sweep) backward(st *stage, i int) error {
	w.tell(float64(len(w.units)-1-i) / float64(len(w.units)))
	err := w.attempt(i, func() {
		for _, kind := range kinds {
			engine.Refill(w.c, w.gradients(kind, i+1).all())
			w.backwardOf(st, i, kind)
			engine.Hollow(w.gradients(kind, i).all())
		}
	})
	in := w.held[i]
	in.free()
	delete(w.held, i)
	return err
}

// backwardOf measures a unit's backwards of a kind, and leaves the gradients of its input.
func (w *sweep) backwardOf(st *stage, i int, kind remat.BackwardKind) {
	u, at, b := &w.units[i], i-st.first, &st.grads[kind]
	var zeroed []nn.NamedLayer
	if kind == remat.Makes {
		zeroed = u.list
	}
	if zeroGrads(zeroed); w.Split {
		u.backs[kind+remat.MakesLater] = w.split(st, i, kind)
		zeroGrads(zeroed)
	}
	known := map[uintptr]int{}
	for k, t := range w.gradients(kind, i+1).list(w.elements(st, i+1)) {
		if t != nil {
			known[w.hold(t)] = b.At[at+1][k]
		}
	}
	before, e := gradBytes(u.list), &w.back[kind]
	e.Send(i, w.arrival(i, input{w.shared(w.held[i].xs), w.shared(w.held[i].skips)}))
	e.Again(i)
	w.do(e, remat.Op{Kind: remat.ForwardSave, Layer: i})
	if i == st.last-1 && i < len(w.units)-1 {
		w.release(e, i)
	}
	peak := w.do(e, remat.Op{Kind: remat.Backward, Layer: i}).peak
	u.backs[kind] = remat.UnitBackward{Peak: peak, Weights: gradBytes(u.list) - before}
	for _, s := range state(u.list) {
		if s.Trainable() && s.Tensor().HasGrad() {
			id, _ := w.c.GradOf(s.Tensor()).Storage()
			if _, isInput := known[id]; !isInput {
				known[id] = -1
			}
		}
	}
	b.note(at, known, w.gradients(kind, i).list(w.elements(st, i)))
}

// hold returns the storage of a gradient. The backward frees the gradient, but no new memory gets this
// identity until the unit is measured.
func (w *sweep) hold(t *torch.Tensor) uintptr {
	id, _, drop := engine.HoldStorage(t)
	w.drops = append(w.drops, drop)
	return id
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
				one := []*torch.Tensor{g.ties[k]}
				w.replace(one)
				w.back[kind].GiveTie(k, one[0])
				g.ties[k] = one[0]
			}
		}
		engine.Hollow(g.all())
	}
}
