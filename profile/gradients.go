package profile

import (
	"slices"

	"penstock.example/nn"
	"penstock.example/segment"
	"penstock.example/torch"
)

// elements numbers the gradients at a boundary: those of the tuple, those of each skip's pops from
// there on, and those of the ties that wait there.
type elements struct {
	tuple int
	skips []int // by skip: pops
	ties  []int
}

// elements are those at a boundary of the stage. Later stages send a gradient for each of their pops.
func (st *staged) elements(boundary, tuple int) elements {
	out := elements{tuple: tuple, skips: st.s.Crossing(boundary)}
	for place := range out.skips {
		at := place
		for unit := boundary; unit < len(st.units) && at >= 0; unit++ {
			_, at = st.s.Goes(unit, at)
		}
		if at >= 0 {
			out.skips[place] += st.beyond[at] - 1
		}
	}
	for k, t := range st.ties {
		if (t.earlier || t.first < boundary) && (t.later || t.last >= boundary) {
			out.ties = append(out.ties, k)
		}
	}
	return out
}

func (e elements) count() int {
	n := e.tuple + len(e.ties)
	for _, pops := range e.skips {
		n += pops
	}
	return n
}

func (e elements) skip(place, pop int) int {
	n := e.tuple + pop
	for _, pops := range e.skips[:place] {
		n += pops
	}
	return n
}

func (e elements) tie(k int) int { return e.count() - len(e.ties) + slices.Index(e.ties, k) }

// hold is the identity of the memory of a gradient. No other memory gets it before the unit is
// measured, although backward frees the gradient: new memory could otherwise lie where it was.
func (p *prober) hold(t *torch.Tensor) uintptr {
	id, _, drop := t.HoldStorage()
	p.drops = append(p.drops, drop)
	return id
}

// dropHeld gives identities back, and frees what a failure has left.
func (p *prober) dropHeld() {
	for _, e := range p.executions {
		e.Free()
	}
	p.spare, p.executions = append(p.spare, p.executions...), nil
	for _, drop := range p.drops {
		drop()
	}
	p.drops = nil
}

// gradients are those at a boundary: of the tuple, of each skip by pop, and by tie.
type gradients struct {
	xs    []*torch.Tensor
	skips [][]*torch.Tensor
	ties  map[int]*torch.Tensor
}

func (b *gradients) free() {
	for _, list := range append(b.skips, b.xs) {
		torch.FreeAll(list)
	}
	for _, t := range b.ties {
		t.Free()
	}
	*b = gradients{}
}

// all is the gradients, in no order.
func (b *gradients) all() []*torch.Tensor {
	out := append(slices.Concat(b.skips...), b.xs...)
	for _, t := range b.ties {
		out = append(out, t)
	}
	return out
}

// Gradients between units are measured for what they are like, and not for their values. So those of one kind of
// backward have memory at a time, and that only while their unit is measured.

// hollow frees the memory of gradients until it is their turn.
func (b *gradients) hollow() { torch.Hollow(b.all()) }

// list is all gradients by their number.
func (b *gradients) list(n elements) []*torch.Tensor {
	out := make([]*torch.Tensor, n.count())
	copy(out, b.xs[:min(len(b.xs), n.tuple)])
	for place, list := range b.skips {
		for k, t := range list {
			out[n.skip(place, k)] = t
		}
	}
	for k, t := range b.ties {
		out[n.tie(k)] = t
	}
	return out
}

// give gives an execution gradients of a unit's output. Those of ties that the unit does not use stay.
func (b *gradients) give(st *staged, unit int, e *segment.Execution) {
	e.GiveGrads(unit+1, b.xs, b.skips)
	for k, t := range b.ties {
		if st.s.Uses(unit, k) {
			e.GiveTie(k, t)
			delete(b.ties, k)
		}
	}
	b.xs, b.skips = nil, nil
}

// take takes the gradients of a unit's input out of an execution. Those of ties that it was not given
// stand in b already.
func (b *gradients) take(p *prober, st *staged, unit int, e *segment.Execution) {
	b.xs, b.skips = e.TakeGrads(unit)
	for k, t := range st.ties {
		switch {
		case !st.s.Uses(unit, k):
		case t.first < unit:
			b.put(k, e.TakeTie(k))
		case t.earlier:
			tensor := st.s.TieTensor(k)
			b.put(k, p.c.Keep(p.c.GradOf(tensor)))
			tensor.SetGradOf(nil)
		}
	}
}

func (b *gradients) put(tie int, t *torch.Tensor) {
	if b.ties == nil {
		b.ties = map[int]*torch.Tensor{}
	}
	if t != nil {
		b.ties[tie] = t
	}
}

// gradientFlow is the memory of gradients in a backward of the stage.
type gradientFlow struct {
	storages []*storage
	states   [][]*storage // by boundary, by element; nil where there is none
}

// arrives notes the gradients of the stage's output.
func (f *gradientFlow) arrives(list []*torch.Tensor) {
	known := map[uintptr]*storage{}
	last := len(f.states) - 1
	for _, t := range list {
		var s *storage
		if t != nil {
			id, bytes := t.Storage()
			if s = known[id]; s == nil {
				s = f.begin(last, bytes)
				known[id] = s
			}
		}
		f.states[last] = append(f.states[last], s)
	}
}

func (f *gradientFlow) begin(boundary int, bytes int64) *storage {
	s := &storage{bytes: bytes, first: boundary, last: boundary}
	f.storages = append(f.storages, s)
	return s
}

// goes notes the gradients that the backward of a unit has left. given are the identities of those
// that it was given, by number. Memory of gradients of parameters counts as theirs.
func (f *gradientFlow) goes(unit int, given []uintptr, left []*torch.Tensor, list []nn.NamedLayer) {
	known := map[uintptr]*storage{}
	for k, id := range given {
		if id != 0 {
			known[id] = f.states[unit+1][k]
		}
	}
	own := map[uintptr]bool{}
	for _, l := range list {
		for _, s := range l.State() {
			if s.Trainable() && s.Tensor().HasGrad() {
				own[gradStorage(s.Tensor())] = true
			}
		}
	}
	for _, t := range left {
		var s *storage
		if t != nil {
			id, bytes := t.Storage()
			if s = known[id]; s == nil && !own[id] {
				s = f.begin(unit, bytes)
				known[id] = s
			}
		}
		if s != nil {
			s.last = unit
		}
		f.states[unit] = append(f.states[unit], s)
	}
}

func gradStorage(t *torch.Tensor) uintptr {
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	id, _ := c.GradOf(t).Storage()
	return id
}

// made is the bytes that begin at a boundary.
func made(storages []*storage, boundary int) (bytes int64) {
	for _, s := range storages {
		if s.first == boundary {
			bytes += s.bytes
		}
	}
	return bytes
}
