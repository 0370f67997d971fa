package profile

import (
	"slices"

	"penstock.example/remat"
	"penstock.example/segment"
	"penstock.example/torch"
)

// deferredMemory is what a unit holds between both parts of a backward: memory of its own, and
// elements, by number, of its input and output and of the gradients of its output and its input.
type deferredMemory struct {
	own             int64
	inputs, outputs []int
	given, going    []int
	lent            []int // gradients of the output of which it is not known whether it holds them
}

// share is the second part's share of the time, in one run.
func (r backReading) share() float64 {
	if r.second.took <= 0 {
		return 0
	}
	return r.second.took.Seconds() / (r.first.took + r.second.took).Seconds()
}

// parts is the share of the second part in the time of both, and how many microseconds longer both take than a
// whole backward; nothing where they were not timed.
func (t unitTimes) parts() (share, longer float64) {
	first, second, whole := t[firstPart].micros(), t[secondPart].micros(), t[laterBackward].micros()
	if both := first + second; both > 0 {
		share, longer = second/both, max(both-whole, 0)
	}
	return share, longer
}

// parts finds what unit i defers, in a backward of its own, whose inputs and gradients are copies.
// The handles on them are freed one after the other. What is not freed with them is deferred. The
// gradients of parameters are there.
func (p *prober) parts(st *staged, i int) (out deferredMemory) {
	before := p.live()
	left := &p.left[remat.MakesLater]
	after := st.elements(i+1, st.flows.tuple[i+1])
	a := segment.Arrival{Tensors: p.clones(p.xs), Skips: p.clones(p.skips)}
	own := func(list []*torch.Tensor) []*torch.Tensor {
		for _, t := range list {
			p.owned(t)
		}
		return list
	}
	inputs := own(slices.Concat(p.shared(a.Tensors), p.shared(a.Skips)))
	if i == 0 {
		a.Wants, a.WantsSkips = p.wants(p.xs), p.wants(p.skips)
	}
	e := p.executeWith(i, a)
	e.Again(i)
	p.do(e, remat.Op{Kind: remat.ForwardSave, Layer: i})
	ys, stashed := e.Saved(i)
	outputs := own(slices.Concat(p.shared(ys), p.shared(stashed)))
	copied := left.copied(p, func(uintptr) bool { return false })
	defer func() { copied.free() }()
	lent := map[uintptr]bool{}
	for _, t := range left.list(after) {
		if t != nil {
			id, _ := t.Storage()
			lent[id] = true
		}
	}
	given := own(p.shared(copied.list(after)))
	for place, t := range stashed { // those of other skips go on below the unit
		for pop := 0; t == nil && pop < after.skips[place]; pop++ {
			given[after.skip(place, pop)].Free()
		}
	}
	copied.give(st, i, e)
	e.Defer = true
	p.do(e, remat.Op{Kind: remat.Backward, Layer: i})
	copied.take(p, st, i, e)
	xs, skips := e.Take(i + 1) // such as skips that go on
	torch.FreeAll(xs)
	torch.FreeAll(skips)
	going := slices.Clone(copied.list(st.elements(i, st.flows.tuple[i])))

	lists := [][]*torch.Tensor{inputs, outputs, given, going}
	held := []*[]int{&out.inputs, &out.outputs, &out.given, &out.going}
	for which, list := range lists {
		for k, t := range list {
			if t == nil || t.Freed() {
				continue
			}
			id, bytes := t.Storage()
			was := p.live()
			for _, o := range slices.Concat(lists...) { // a gradient that goes on is what was given
				if o != nil && o != t && !o.Freed() {
					if other, _ := o.Storage(); other == id {
						o.Free()
					}
				}
			}
			switch t.Free(); {
			case lent[id]:
				if which == 2 {
					out.lent = append(out.lent, k)
				}
			case p.live() == was && bytes > 0:
				*held[which] = append(*held[which], k)
				out.own -= bytes
			}
		}
	}
	out.own += p.live() - before
	e.Weights(p.c)
	e.Free()
	return out
}

// settle finds which of the gradients that were no copies are deferred: freed is the bytes of which the second part
// of a backward of the unit lets go. Nobody else holds those that do not go on.
func (d *deferredMemory) settle(f *gradientFlow, i int, freed int64) {
	rest := freed - d.own
	goesOn := func(k int) bool { return slices.Contains(f.states[i], f.states[i+1][k]) }
	for _, k := range d.given {
		if s := f.states[i+1][k]; s != nil && !goesOn(k) {
			rest -= s.bytes
		}
	}
	for _, k := range d.lent {
		if goesOn(k) || rest > 0 {
			d.given = append(d.given, k)
		}
	}
	d.lent = nil
}

// ofLayer is what the layer of a chain defers.
func (d *deferredMemory) ofLayer(share, longer float64) remat.Deferred {
	return remat.Deferred{Bytes: d.own, Input: len(d.inputs) > 0, Output: len(d.outputs) > 0,
		Gradient: len(d.given) > 0, InputGradient: len(d.going) > 0, Share: share, Longer: longer}
}

// copied is copies of the gradients but for those that somebody else holds, by the identity of their
// memory: these are further handles. So are those that do not fill their memory: copies would lie
// otherwise. Gradients of one shape that lie in the same memory do so in the copies.
func (b *gradients) copied(p *prober, held func(id uintptr) bool) (out gradients) {
	copies := map[uintptr]*torch.Tensor{}
	one := func(t *torch.Tensor) *torch.Tensor {
		if t == nil {
			return nil
		}
		from := t
		id, bytes := t.Storage()
		if !held(id) && bytes == t.Numel()*t.DType().Size() {
			same := copies[id]
			if same == nil || !slices.Equal(same.Shape(), t.Shape()) || !same.IsContiguous() || !t.IsContiguous() {
				same = p.owned(p.c.Keep(p.c.Clone(t)))
				copies[id] = same
				return same
			}
			from = same
		}
		return p.owned(p.c.Keep(p.c.Share(from)))
	}
	each := func(list []*torch.Tensor) (copies []*torch.Tensor) {
		for _, t := range list {
			copies = append(copies, one(t))
		}
		return copies
	}
	out.xs = each(b.xs)
	for _, list := range b.skips {
		out.skips = append(out.skips, each(list))
	}
	for k, t := range b.ties {
		out.put(k, one(t))
	}
	return out
}

// copies makes copies of tensors, kept. A tensor that stands there twice stays one.
func (p *prober) clones(list []*torch.Tensor) []*torch.Tensor {
	out := make([]*torch.Tensor, len(list))
	for i, x := range list {
		if k := slices.Index(list[:i], x); k >= 0 {
			out[i] = out[k]
		} else if x != nil {
			out[i] = p.owned(p.c.Keep(p.c.Clone(x)))
		}
	}
	return out
}
