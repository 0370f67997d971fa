package profile

import (
	"slices"

	"penstock.example/internal/segment"
	"penstock.example/nn"
	"penstock.example/remat"
	"penstock.example/torch"
)

// found is the result of one run of each layer. The tensors of its flows are freed.
type found struct {
	input     int64    // bytes of the sample
	in, out   [][]flow // by layer, distinct
	saved     []int64  // by layer: bytes that it saves, without its input and its output
	held      []int64  // by layer, the loss too: bytes that a forward with gradients leaves
	overwrote []bool   // by layer, the loss too: it overwrote its input
	blocks    []*block
	skips     map[nn.SkipKey]flow // stashed for another layer

	copied  int64   // bytes of transfers that were timed
	seconds float64 // of these
}

// flow is a tensor that goes from layer to layer: a copy of an output of the layer before. An
// element of a tuple that stands there twice is the same flow twice.
type flow struct {
	t     *torch.Tensor // kept; nil for a skip that is absent
	grad  bool          // its gradient goes back
	bytes int64         // of a transfer
	block *block        // of the original
}

// block is the memory of an output of a layer. Outputs of several layers may share one: views, and
// outputs of layers that work in place.
type block struct {
	creator int // the layer that allocated it, or nobody
	saver   int // the last layer that saves it for backward, or nobody
	bytes   int64
}

// nobody is the saver of blocks that no layer saves, and the creator of the model's input and of
// parameters, which are held anyway.
const nobody = -1

// lookEach measures every layer as a unit of its own. It is what all chains and balances are
// derived from.
func (p *prober) lookEach(of string, sample []*torch.Tensor) (s looked, err error) {
	s.of, p.overwrite, s.found.skips = of, true, map[nn.SkipKey]flow{}
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

// look runs each layer once with gradients, and finds the memory held until its backward.
func (p *prober) look(f *found, sample []*torch.Tensor) error {
	l := &scan{prober: p, f: f}
	defer l.free()
	err := attempt(theSample, func() error {
		defer p.c.Close()
		// The first stage of a pipe holds the batch in any case.
		owned := &block{creator: nobody, saver: nobody}
		for i, x := range sample {
			l.xs = append(l.xs, l.copied(x, sample[:i], l.xs, owned))
			l.xs[i].grad = p.InputGrad && x.DType().IsFloat()
		}
		for _, x := range distinct(l.xs) {
			f.input += x.bytes
		}
		return nil
	})
	for i, layer := range p.layers {
		if err == nil {
			err = p.ctx.Err()
		}
		if err != nil {
			return err
		}
		if p.BytesOnly {
			p.tell(float64(i) / float64(p.model))
		}
		err = attempt(layer.Name, func() error {
			defer p.c.Close()
			defer p.peer.Close()
			defer p.dropHeld()
			defer p.ready(layer)()
			l.run(i)
			return nil
		})
	}
	return err
}

// scan is the state of look.
type scan struct {
	*prober
	f               *found
	xs, skips       []flow // the input of the next layer: the tuple, and the skips by place at the boundary
	next, nextSkips []flow // its output, as far as it is copied
}

func (l *scan) free() {
	for _, f := range slices.Concat(l.xs, l.skips, l.next, l.nextSkips) {
		f.t.Free()
	}
}

// owned frees a kept tensor after the unit, if it is still there.
func (p *prober) owned(t *torch.Tensor) *torch.Tensor {
	p.drops = append(p.drops, t.Free)
	return t
}

// copied copies a tensor, as a transfer between stages does. An element that occurs twice shares
// its copy.
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

// run looks at layer i, and makes its output the input of the next. When all handles on input and
// output are freed, only the graph of the layer holds memory, which the account then shows. A skip
// that later layers need is copied first.
func (l *scan) run(i int) {
	before := l.live()
	h := &handles{scan: l, blocks: map[uintptr]*block{}, of: map[uintptr][]*torch.Tensor{}}
	for _, s := range l.layers[i].State() {
		id, _ := s.Tensor().Storage()
		h.blocks[id] = &block{creator: nobody, saver: nobody} // a layer may return its parameter
	}
	a := segment.Arrival{}
	for k, f := range l.xs {
		if slices.IndexFunc(l.xs, func(e flow) bool { return e.t == f.t }) == k {
			h.take(f)
		}
		a.Tensors, a.Wants = append(a.Tensors, f.t), append(a.Wants, f.grad)
	}
	for place, f := range l.skips {
		pops, after := l.s.Goes(i, place)
		if pops == 0 {
			f.t = nil
		} else if f.t != nil && after >= 0 {
			f.t = l.owned(l.c.Keep(l.c.Clone(f.t)))
			h.add(f.t, f.block)
		} else if f.t != nil {
			h.take(f)
		}
		a.Skips, a.WantsSkips = append(a.Skips, f.t), append(a.WantsSkips, f.grad)
	}
	changes := func() (n int64) {
		for _, list := range h.of {
			for _, x := range list {
				n += x.Changes()
			}
		}
		return n
	}
	was := changes()
	e := l.execution()
	a.Tensors, a.Skips = l.shared(a.Tensors), l.shared(a.Skips)
	e.Send(i, a)
	e.Again(i)
	held := l.do(e, remat.Op{Kind: remat.ForwardSave, Layer: i}).delta
	l.f.held, l.f.overwrote = append(l.f.held, held), append(l.f.overwrote, changes() != was)
	if i == l.model {
		return // nothing follows the loss
	}
	for _, boundary := range []int{i, i + 1} {
		xs, skips := e.Take(boundary)
		torch.FreeAll(slices.Concat(xs, skips))
	}
	ys, stashed := e.TakeSaved(i)
	for _, t := range slices.Concat(ys, stashed) {
		l.owned(t)
	}
	for k, y := range ys {
		l.next = append(l.next, h.output(i, y, ys[:k], l.next))
	}
	for _, t := range stashed {
		l.nextSkips = append(l.nextSkips, h.output(i, t, nil, nil))
	}
	l.f.in, l.f.out = append(l.f.in, distinct(l.xs)), append(l.f.out, distinct(l.next))
	l.f.saved = append(l.f.saved, h.release(i)-before)
	if !l.BytesOnly {
		l.transfers(distinct(l.next))
		l.transfers(l.nextSkips)
	}
	l.pass(i)
}

// pass goes on to the next layer.
func (l *scan) pass(i int) {
	isStashed := slices.Repeat([]bool{true}, len(l.nextSkips))
	for place, f := range l.skips {
		if _, after := l.s.Goes(i, place); after < 0 {
			f.t.Free()
		} else {
			l.nextSkips[after], isStashed[after] = f, false
		}
	}
	place := 0
	for _, r := range l.routes {
		if r.Stash != i || lastPop(r) == i { // it goes to no other layer
			continue
		}
		for !isStashed[place] {
			place++
		}
		l.f.skips[r.Key] = l.nextSkips[place]
		place++
	}
	for _, f := range l.xs {
		f.t.Free()
	}
	l.xs, l.skips, l.next, l.nextSkips = l.next, l.nextSkips, nil, nil
}

func lastPop(r nn.SkipRoute) int { return r.Pops[len(r.Pops)-1] }

// transfers times copies of flows to the other device.
func (l *scan) transfers(flows []flow) {
	for _, f := range flows {
		if f.bytes == 0 {
			continue
		}
		var times timed
		for n := (count{Config: &l.Config}); n.more(); {
			took := l.took(l.peer, func() { l.peer.CopyHere(f.t) })
			if n.add(took) {
				times = append(times, took)
			}
			l.peer.Close()
		}
		l.f.copied += f.bytes
		l.f.seconds += times.typical().Seconds()
	}
}

// handles are all handles on the inputs and outputs of a layer, except those of its graph.
type handles struct {
	*scan
	blocks map[uintptr]*block          // by identity of the storage
	of     map[uintptr][]*torch.Tensor // by identity of the storage
	order  []uintptr
	beside int64 // bytes that were allocated to look, and not by the layer
}

func (h *handles) add(t *torch.Tensor, b *block) {
	id, _ := t.Storage()
	if h.blocks[id] == nil {
		h.blocks[id] = b
		h.order = append(h.order, id)
	}
	h.of[id] = append(h.of[id], t)
}

// take adds an element of the input, which was there before the layer.
func (h *handles) take(f flow) {
	_, bytes := f.t.Storage()
	h.beside -= bytes
	h.add(f.t, f.block)
}

// output makes a flow of an output of layer i. earlier are the elements before it, with their
// flows.
func (h *handles) output(i int, t *torch.Tensor, earlier []*torch.Tensor, flows []flow) (out flow) {
	if t == nil {
		return flow{}
	}
	id, bytes := t.Storage()
	b := h.blocks[id]
	if b == nil {
		b = &block{creator: i, saver: nobody, bytes: bytes}
		h.f.blocks = append(h.f.blocks, b)
	}
	h.add(t, b)
	was := h.live()
	if t.RequiresGrad() {
		defer h.c.SetGrad(h.c.SetGrad(true))
		h.c.Sum(t) // keeps the graph, and not the memory of t
	}
	out = h.copied(t, earlier, flows, b) // last, as nobody would free it if the sum failed
	h.beside += h.live() - was
	return out
}

// release frees all handles on each block. If its memory is live afterwards, the graph holds it.
// The result is the bytes that the graph holds outside of the blocks.
func (h *handles) release(layer int) int64 {
	live := h.live() - h.beside
	for _, id := range h.order {
		was := h.live()
		_, bytes := h.of[id][0].Storage()
		torch.FreeAll(h.of[id])
		if h.live() == was {
			h.blocks[id].saver = layer
		}
		live -= bytes
	}
	return live
}
