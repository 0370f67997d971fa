package profile

import (
	"slices"

	"penstock/nn"
	"penstock/segment"
	"penstock/torch"
)

// origin says whose memory a gradient has after the backward of a unit.
type origin struct {
	from  int   // the element of the gradients after the unit with the same memory; -1 if it is new
	group int   // gradients of one group share new memory; -1 where there is no gradient
	bytes int64 // of the new memory
}

var absent = origin{-1, -1, 0}

// elements numbers the gradients at a boundary: those of the tuple, those of each skip's pops from
// there on, and those of the ties that wait there.
type elements struct {
	tuple int
	skips []int // by skip: pops
	ties  []int
}

func elementsOf(s *segment.Segment, boundary, tuple int) elements {
	return elements{tuple, s.Crossing(boundary), s.Tied(boundary)}
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

// odd reports whether a gradient differs from one that give makes: contiguous, in memory of its
// own.
func (b *gradients) odd() bool {
	seen := map[uintptr]bool{}
	for _, list := range append(b.skips, b.xs) {
		for _, t := range list {
			if t == nil { // give would make one, perhaps
				return true
			}
			id, bytes := t.Storage()
			if seen[id] || bytes != t.Numel()*t.DType().Size() || !t.IsContiguous() {
				return true
			}
			seen[id] = true
		}
	}
	return false
}

// strided reports whether a tensor is not contiguous. Ones in its layout would not be, either.
func strided(list []*torch.Tensor) bool {
	return slices.ContainsFunc(list, func(t *torch.Tensor) bool { return t != nil && !t.IsContiguous() })
}

// give gives an execution the gradients of a unit's output that the unit after it has left. It
// returns the identity of the memory of each, by its number.
func (b *gradients) give(p *prober, unit int, e *segment.Execution) (given []uintptr) {
	n := elementsOf(p.s, unit+1, len(b.xs))
	given = make([]uintptr, n.count())
	handle := func(number int, t *torch.Tensor) *torch.Tensor {
		if t == nil {
			return nil
		}
		given[number] = p.hold(t)
		return t
	}
	gx, gs := make([]*torch.Tensor, len(b.xs)), make([][]*torch.Tensor, len(b.skips))
	e.GiveGrads(unit+1, gx, gs) // before they are there: it frees what a failure has left
	for i, t := range b.xs {
		gx[i] = handle(i, t)
	}
	_, stashed := e.Saved(unit)
	for i, list := range b.skips {
		pops, _ := p.s.Goes(unit+1, i)
		for k, t := range list {
			if t == nil && k >= pops && stashed[i] != nil && stashed[i].RequiresGrad() { // it comes from a later unit, and was not made
				t = p.c.Keep(p.c.OnesLike(stashed[i]))
			}
			gs[i] = append(gs[i], handle(n.skip(i, k), t))
		}
	}
	for _, k := range n.ties {
		if p.s.Uses(unit, k) {
			t := b.ties[k]
			if of := p.s.TieTensor(k); t == nil && of.RequiresGrad() { // so does this
				t = p.c.Keep(p.c.OnesLike(of))
			}
			e.GiveTie(k, handle(n.tie(k), t))
			delete(b.ties, k)
		}
	}
	b.xs, b.skips = nil, nil
	return given
}

// give gives an execution ones as the gradients of a unit's output, each in the layout of its
// tensor. It returns the identity of the memory of each, by its number; nil if the unit has no
// backward.
func (p *prober) give(unit int, e *segment.Execution) (given []uintptr) {
	xs, skips := e.Saved(unit)
	n := elementsOf(p.s, unit+1, len(xs))
	given, p.ended = make([]uintptr, n.count()), make([]int64, n.count())
	any := false
	ones := func(number int, t *torch.Tensor) *torch.Tensor {
		if t == nil || !t.RequiresGrad() {
			return nil
		}
		g := p.c.Keep(p.c.OnesLike(t))
		given[number] = p.hold(g)
		_, p.ended[number] = g.Storage()
		any = true
		return g
	}
	gx, gs := make([]*torch.Tensor, len(xs)), make([][]*torch.Tensor, len(skips))
	e.GiveGrads(unit+1, gx, gs) // before they are made: it frees what a failure has left
	for i, t := range xs {
		if !slices.Contains(xs[:i], t) {
			gx[i] = ones(i, t)
		}
	}
	for i, pops := range n.skips {
		for k := range pops {
			gs[i] = append(gs[i], ones(n.skip(i, k), skips[i]))
		}
	}
	for _, k := range n.ties {
		if p.s.Uses(unit, k) {
			e.GiveTie(k, ones(n.tie(k), p.s.TieTensor(k)))
		}
	}
	if !any {
		return nil
	}
	return given
}

// backward records whose memory the gradients have that a unit's backward has left, and returns
// them.
func (f *flows) backward(unit int, e *segment.Execution, list []nn.NamedLayer, given []uintptr) (left gradients) {
	here, after := elementsOf(f.s, unit, f.tuple[unit]), elementsOf(f.s, unit+1, f.tuple[unit+1])
	out := make([]origin, here.count())
	groups := map[uintptr]int{}
	for _, l := range list {
		for _, s := range l.State() {
			if s.Trainable() && s.Tensor().HasGrad() {
				groups[gradStorage(s.Tensor())] = -1
			}
		}
	}
	of := func(t *torch.Tensor) origin {
		if t == nil {
			return absent
		}
		id, bytes := t.Storage()
		if k := slices.Index(given, id); k >= 0 {
			return origin{from: k, group: -1}
		}
		group, known := groups[id]
		if !known {
			group = len(groups)
			groups[id] = group
		}
		if group < 0 { // it counts as the gradient of a parameter
			return absent
		}
		return origin{-1, group, bytes}
	}
	xs, skips := e.TakeGrads(unit)
	left = gradients{xs: xs, skips: skips, ties: map[int]*torch.Tensor{}}
	for i := range here.tuple {
		out[i] = absent
		if i < len(xs) {
			out[i] = of(xs[i])
		}
	}
	for place, n := range here.skips {
		pops, on := f.s.Goes(unit, place)
		for k := range n {
			o := absent
			switch {
			case k >= pops:
				o = origin{from: after.skip(on, k-pops), group: -1}
			case place < len(skips) && k < len(skips[place]):
				o = of(skips[place][k])
			}
			out[here.skip(place, k)] = o
		}
	}
	for _, k := range here.ties {
		if f.s.Uses(unit, k) {
			left.ties[k] = e.TakeTie(k)
			out[here.tie(k)] = of(left.ties[k])
		} else {
			out[here.tie(k)] = origin{from: after.tie(k), group: -1}
		}
	}
	f.origins[unit] = out
	return left
}

func gradStorage(t *torch.Tensor) uintptr {
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	id, _ := c.GradOf(t).Storage()
	return id
}

// grads follows the gradients down from the last boundary, and returns their memory. made[b] is the
// bytes of it that are allocated at boundary b.
func (f *flows) grads() (storages []*storage, made []int64) {
	n := f.s.Units()
	made = make([]int64, n+1)
	var at []*storage
	begin := func(boundary int, bytes int64) *storage {
		l := &storage{bytes: bytes, first: boundary, last: boundary}
		storages, made[boundary] = append(storages, l), made[boundary]+bytes
		return l
	}
	for _, bytes := range f.end {
		at = append(at, begin(n, bytes))
	}
	for unit := n - 1; unit >= 0; unit-- {
		groups := map[int]*storage{}
		next := make([]*storage, len(f.origins[unit]))
		for i, o := range f.origins[unit] {
			switch {
			case o.from >= 0:
				if next[i] = at[o.from]; next[i] != nil {
					next[i].last = unit
				}
			case o.group >= 0:
				if groups[o.group] == nil {
					groups[o.group] = begin(unit, o.bytes)
				}
				next[i] = groups[o.group]
			}
		}
		at = next
	}
	return storages, made
}
