package profile

import (
	"slices"

	"penstock.example/nn"
	"penstock.example/remat"
	"penstock.example/segment"
	"penstock.example/torch"
)

// lookEach measures every layer as a unit of its own. It is what all chains and balances are derived
// from.
func (p *prober) lookEach(of string, sample []*torch.Tensor) (s looked, err error) {
	s.of, p.overwrite, p.inputGrad = of, true, p.InputGrad
	defer func() { p.overwrite = false }()
	if p.s, err = p.segment(0, len(p.layers), slices.Repeat([]int{1}, len(p.layers))); err != nil {
		return s, err
	}
	if err := p.look(&s.found, sample); err != nil || p.BytesOnly {
		return s, err
	}
	p.overwrote = s.found.overwrote
	s.times, s.devices, err = p.passes(sample, s.found.held)
	return s, err
}

// flow is a tensor that goes from layer to layer: a copy of an output of the layer before. An
// element of a tuple that stands there twice is the same flow twice.
type flow struct {
	t     *torch.Tensor // kept; nil for a skip that is absent
	grad  bool          // its gradient goes back
	bytes int64         // of a transfer
	block *block        // of the original
}

// look runs each layer once with gradients, and finds what is held until its backward.
func (p *prober) look(f *found, sample []*torch.Tensor) error {
	l := &scan{prober: p, f: f}
	defer l.free()
	err := attempt(theSample, func() error {
		defer p.c.Close()
		owned := newBlock(nobody, 0) // the first stage of a pipe holds the batch in any case
		for i, x := range sample {
			l.xs = append(l.xs, l.copied(x, sample[:i], l.xs, owned))
			l.xs[i].grad = p.InputGrad && x.DType().IsFloat()
		}
		for _, x := range distinct(l.xs) {
			f.input += x.bytes
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i, layer := range p.layers {
		if err := p.ctx.Err(); err != nil {
			return err
		}
		if p.BytesOnly {
			p.tell(float64(i) / float64(p.model))
		}
		err := attempt(layer.Name, func() error {
			defer p.c.Close()
			defer p.peer.Close()
			defer p.dropHeld()
			defer p.ready(layer)()
			l.run(i)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// scan is the state of look.
type scan struct {
	*prober
	f         *found
	xs, skips []flow // the input of the next layer: the tuple, and the skips by place at the boundary
	next      result // its output, as far as it is copied
}

func (l *scan) free() {
	for _, f := range slices.Concat(l.xs, l.skips, l.next.xs, l.next.skips) {
		f.t.Free()
	}
}

// owned frees a kept tensor after the unit, if it is still there.
func (p *prober) owned(t *torch.Tensor) *torch.Tensor {
	p.drops = append(p.drops, t.Free)
	return t
}

// copied copies a tensor, as a transfer between stages would. An element that stands there again
// shares its copy.
func (p *prober) copied(t *torch.Tensor, earlier []*torch.Tensor, copies []flow, b *block) flow {
	if i := slices.Index(earlier, t); i >= 0 {
		return copies[i]
	}
	f := flow{t: p.c.Keep(p.c.CopyHere(t)), grad: t.RequiresGrad(), block: b}
	_, f.bytes = f.t.Storage()
	return f
}

// distinct leaves out elements that stand there again: they are transferred once.
func distinct(flows []flow) (out []flow) {
	for _, f := range flows {
		if !slices.ContainsFunc(out, func(e flow) bool { return e.t == f.t }) {
			out = append(out, f)
		}
	}
	return out
}

// run looks at layer i, and makes its output the input of the next. Nothing but the layer's graph holds its
// input when all handles are freed: so the account shows what the graph holds. Of a skip that goes on it gets a
// copy.
func (l *scan) run(i int) {
	before := l.live()
	h := newHandles(l.prober, l.layers[i])
	for place, f := range l.skips {
		if _, after := l.s.Goes(i, place); after >= 0 {
			h.stays = append(h.stays, f.t)
		}
	}
	a := segment.Arrival{}
	for _, f := range l.xs {
		a.Tensors, a.Wants = append(a.Tensors, h.given(f)), append(a.Wants, f.grad)
	}
	for place, f := range l.skips {
		var x *torch.Tensor
		if pops, _ := l.s.Goes(i, place); pops > 0 {
			x = h.given(f)
		}
		a.Skips, a.WantsSkips = append(a.Skips, x), append(a.WantsSkips, f.grad)
	}
	changed := h.watch()
	e := l.execution()
	a.Tensors, a.Skips = l.shared(a.Tensors), l.shared(a.Skips)
	e.Send(i, a)
	e.Again(i)
	held := l.do(e, remat.Op{Kind: remat.ForwardSave, Layer: i}).delta
	l.f.held, l.f.overwrote = append(l.f.held, held), append(l.f.overwrote, changed())
	if i == l.model {
		return // nothing follows the loss
	}
	for _, boundary := range []int{i, i + 1} {
		xs, skips := e.Take(boundary)
		torch.FreeAll(xs)
		torch.FreeAll(skips)
	}
	ys, given := e.TakeSaved(i)
	for _, t := range slices.Concat(ys, given) {
		l.owned(t)
	}
	for k, y := range ys {
		l.next.xs = append(l.next.xs, h.output(i, y, ys[:k], l.next.xs, l.f))
	}
	for _, t := range given {
		l.next.skips = append(l.next.skips, h.output(i, t, nil, nil, l.f))
	}
	l.f.layer(l.layers[i], h.release(i)-before, l.xs, l.next.xs)
	if !l.BytesOnly {
		l.transfers(distinct(l.next.xs))
		l.transfers(l.next.skips)
	}
	l.pass(i)
}

// result is the output of a layer: the tuple, and by place at the boundary after it what it
// stashes.
type result struct{ xs, skips []flow }

// pass goes on to the next layer.
func (l *scan) pass(i int) {
	stashed := make([]bool, len(l.next.skips))
	for place := range stashed {
		stashed[place] = true
	}
	for place, f := range l.skips {
		_, after := l.s.Goes(i, place)
		if after < 0 {
			f.t.Free()
			continue
		}
		l.next.skips[after], stashed[after] = f, false
	}
	place := 0
	for _, r := range l.routes {
		if r.Stash != i || !leaves(r) {
			continue
		}
		for !stashed[place] {
			place++
		}
		l.f.skip(r, l.next.skips[place])
		place++
	}
	for _, f := range l.xs {
		f.t.Free()
	}
	l.xs, l.skips, l.next = l.next.xs, l.next.skips, result{}
}

// leaves reports whether a skip goes to another layer.
func leaves(r nn.SkipRoute) bool { return lastPop(r) > r.Stash }

func lastPop(r nn.SkipRoute) int { return r.Pops[len(r.Pops)-1] }

// handles are all handles on the inputs and outputs of a layer. Beside them only its graph holds
// memory.
type handles struct {
	p      *prober
	blocks map[uintptr]*block          // by identity of the storage
	of     map[uintptr][]*torch.Tensor // by identity of the storage
	order  []uintptr
	copies map[*torch.Tensor]*torch.Tensor // of the input, by the flow's tensor; itself where it does not go on
	stays  []*torch.Tensor                 // of the input, what goes on
	beside int64                           // bytes that were allocated to look, and not by the layer
}

func newHandles(p *prober, l nn.NamedLayer) *handles {
	h := &handles{p: p, blocks: map[uintptr]*block{}, of: map[uintptr][]*torch.Tensor{}, copies: map[*torch.Tensor]*torch.Tensor{}}
	for _, s := range l.State() {
		id, _ := s.Tensor().Storage()
		h.blocks[id] = newBlock(nobody, 0) // a layer may return its parameter
	}
	return h
}

func (h *handles) add(t *torch.Tensor, b *block) {
	id, _ := t.Storage()
	if h.blocks[id] == nil {
		h.blocks[id] = b
		h.order = append(h.order, id)
	}
	h.of[id] = append(h.of[id], t)
}

// given is an element of the input, or a copy where that goes on.
func (h *handles) given(f flow) *torch.Tensor {
	if f.t == nil {
		return nil
	}
	x := h.copies[f.t]
	if x == nil {
		if x = f.t; slices.Contains(h.stays, x) {
			x = h.p.owned(h.p.c.Keep(h.p.c.Clone(x)))
		} else {
			_, bytes := x.Storage()
			h.beside -= bytes // it was there before the layer
		}
		h.copies[f.t] = x
		h.add(x, f.block)
	}
	return x
}

// watch returns a function that reports whether a copy was overwritten since.
func (h *handles) watch() func() bool {
	before := map[*torch.Tensor]int64{}
	for _, x := range h.copies {
		before[x] = x.Changes()
	}
	return func() bool {
		for x, n := range before {
			if x.Changes() != n {
				return true
			}
		}
		return false
	}
}

// output makes a flow of an output of layer i. earlier are the elements before it, with their flows.
func (h *handles) output(i int, t *torch.Tensor, earlier []*torch.Tensor, flows []flow, f *found) (out flow) {
	if t == nil {
		return flow{}
	}
	c := h.p.c
	id, bytes := t.Storage()
	b := h.blocks[id]
	if b == nil {
		b = newBlock(i, bytes)
		f.blocks = append(f.blocks, b)
	}
	h.add(t, b)
	was := h.p.live()
	if t.RequiresGrad() {
		defer c.SetGrad(c.SetGrad(true))
		c.Sum(t) // keeps the graph, and not the memory of t
	}
	out = h.p.copied(t, earlier, flows, b) // last, as nobody would free it if the sum failed
	h.beside += h.p.live() - was
	return out
}

// release frees all handles on each block. If its memory is live afterwards, the graph holds it.
// The result is the bytes that are live beside the blocks and what was allocated to look.
func (h *handles) release(layer int) int64 {
	live := h.p.live() - h.beside
	for _, id := range h.order {
		was := h.p.live()
		_, bytes := h.of[id][0].Storage()
		torch.FreeAll(h.of[id])
		if h.p.live() == was {
			h.blocks[id].saver = layer
		}
		live -= bytes
	}
	return live
}
