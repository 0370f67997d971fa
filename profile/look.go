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
	at        [][]flow // by boundary: the tuple, and then skips by place
	tuples    []int    // by boundary: elements of the tuple
	saved     []int64  // by layer: bytes that it saves, without its input and its output
	held      []int64  // by layer, the loss too: bytes that a forward with gradients leaves
	overwrote []bool   // by layer, the loss too: it overwrote its input
	blocks    []*block // of outputs

	copied  int64   // bytes of transfers that were timed
	seconds float64 // of these
}

// flow is a tensor that goes from layer to layer: a copy of an output of the layer before.
type flow struct {
	t     *torch.Tensor // kept; nil for a skip that is absent
	grad  bool          // its gradient goes back
	bytes int64         // of a transfer; 0 for an element of a tuple that stands there again
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
	s.of, p.overwrite = of, true
	defer func() { p.overwrite = false }()
	if p.s, err = p.segment(slices.Repeat([]int{1}, len(p.layers))); err != nil {
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
	defer func() {
		for _, f := range slices.Concat(l.in, l.out) {
			f.t.Free()
		}
	}()
	err := attempt(theSample, func() error {
		defer p.c.Close()
		held := &block{creator: nobody, saver: nobody} // by the first stage of a pipe, in any case
		for i, x := range sample {
			l.out = append(l.out, l.copied(x, sample[:i], held))
			l.out[i].grad = p.InputGrad && x.DType().IsFloat()
		}
		l.arrive(len(sample))
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

// scan is the state of look: the input of the next layer, and its output as far as it is copied.
type scan struct {
	*prober
	f       *found
	in, out []flow
}

// arrive makes the output with its tuple of so many elements the input of the next layer.
func (l *scan) arrive(tuple int) {
	l.f.at, l.f.tuples = append(l.f.at, l.out), append(l.f.tuples, tuple)
	l.in, l.out = l.out, nil
}

// owned frees a kept tensor after the unit, if it is still there.
func (p *prober) owned(t *torch.Tensor) *torch.Tensor {
	p.drops = append(p.drops, t.Free)
	return t
}

// copied copies a tensor, as a transfer between stages does. A tensor that is one of the first
// elements of the output shares their copy.
func (l *scan) copied(t *torch.Tensor, earlier []*torch.Tensor, b *block) (f flow) {
	if i := slices.Index(earlier, t); i >= 0 {
		f = l.out[i]
		f.bytes = 0
	} else if t != nil {
		f = flow{t: l.c.Keep(l.c.CopyHere(t)), grad: t.RequiresGrad(), block: b}
		_, f.bytes = f.t.Storage()
	}
	return f
}

// run looks at layer i, and makes its output the input of the next. When all handles on input and
// output are freed, only the graph of the layer holds memory, which the account then shows. A skip
// that later layers need is copied first.
func (l *scan) run(i int) {
	blocks, handles := map[uintptr]*block{}, map[uintptr][]*torch.Tensor{}
	for _, s := range l.layers[i].State() {
		id, _ := s.Tensor().Storage()
		blocks[id] = &block{creator: nobody, saver: nobody} // a layer may return its parameter
	}
	var xs []*torch.Tensor
	var wants []bool
	tuple, passing := l.f.tuples[i], map[int]flow{} // by place after the layer
	for k, f := range l.in {
		if k >= tuple {
			pops, after := l.s.Goes(i, k-tuple)
			if after >= 0 {
				passing[after] = f
			}
			if pops == 0 {
				f.t = nil
			} else if after >= 0 && f.t != nil {
				f.t = l.owned(l.c.Keep(l.c.Clone(f.t)))
			}
		}
		if f.t != nil {
			id, _ := f.t.Storage()
			blocks[id], handles[id] = f.block, append(handles[id], f.t)
		}
		xs, wants = append(xs, f.t), append(wants, f.grad)
	}
	changes := func() (n int64) {
		for _, t := range xs {
			if t != nil {
				n += t.Changes()
			}
		}
		return n
	}
	was, e := changes(), l.execution()
	e.Send(i, segment.Arrival{Tensors: l.shared(xs[:tuple]), Skips: l.shared(xs[tuple:]),
		Wants: wants[:tuple], WantsSkips: wants[tuple:]})
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
	l.drops = append(l.drops, func() { torch.FreeAll(slices.Concat(ys, stashed)) })
	var made []flow
	for k, t := range slices.Concat(ys, stashed) {
		if f, passes := passing[k-len(ys)]; passes {
			l.out = append(l.out, f)
			continue
		}
		var b *block
		if t != nil {
			id, bytes := t.Storage()
			if blocks[id] == nil {
				blocks[id] = &block{creator: i, saver: nobody, bytes: bytes}
				l.f.blocks, held = append(l.f.blocks, blocks[id]), held-bytes
			}
			b, handles[id] = blocks[id], append(handles[id], t)
			l.keepGraph(t)
		}
		earlier := ys[:min(k, len(ys))]
		if k >= len(ys) {
			earlier = nil
		}
		made = append(made, l.copied(t, earlier, b))
		l.out = append(l.out, made[len(made)-1])
	}
	l.f.saved = append(l.f.saved, held)
	for id, list := range handles {
		was := l.live()
		torch.FreeAll(list)
		if l.live() == was {
			blocks[id].saver = i
		}
	}
	if !l.BytesOnly {
		l.transfers(made)
	}
	l.arrive(len(ys))
}

// keepGraph keeps the graph of a tensor, and not its memory, while the layer is looked at.
func (l *scan) keepGraph(t *torch.Tensor) {
	if t.RequiresGrad() {
		defer l.c.SetGrad(l.c.SetGrad(true))
		l.c.Sum(t)
	}
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
