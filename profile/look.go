package profile

import (
	"slices"

	"penstock.example/internal/segment"
	"penstock.example/remat"
	"penstock.example/torch"
)

// looked is the measurement of single layers, which does not depend on the cut. The tensors of its
// flows are freed.
type looked struct {
	key       string      // see settingsKey
	at        [][]flow    // by boundary: the tuple, and then skips by place
	tuples    []int       // by boundary: elements of the tuple
	saved     []int64     // by layer: bytes that it saves, without its input and its output
	held      []int64     // by layer, the loss too: bytes that a forward with gradients leaves
	overwrote []bool      // by layer, the loss too: it overwrote its input
	blocks    []*block    // of outputs
	copied    int64       // bytes of the timed transfers
	seconds   float64     // of the timed transfers
	times     []unitTimes // by layer, the loss too; nil with Config.BytesOnly
	devices   int         // that worked while layers were timed
}

// flow is a tensor that goes from layer to layer: a copy of an output.
type flow struct {
	t     *torch.Tensor // kept; nil for a skip that is absent
	grad  bool          // its gradient goes back
	bytes int64         // of a transfer; 0 for a repeated element of a tuple
	block *block        // of the original
}

// block is the memory of a layer's output. Views and in-place outputs share the block of their input.
type block struct {
	creator int // the layer that allocated it, or nobody
	saver   int // the last layer that saves it for backward, or nobody
	bytes   int64
}

// nobody is the saver of blocks that no layer saves, and the creator of the model's input and of
// parameters, which are held anyway.
const nobody = -1

// lookEach measures every layer as a unit of its own.
func (p *prober) lookEach(key string, sample []*torch.Tensor) (f *looked, err error) {
	f, p.overwrite = &looked{key: key}, true
	defer func() { p.overwrite = false }()
	if p.s, err = p.segment(slices.Repeat([]int{1}, len(p.layers))); err != nil {
		return f, err
	}
	if err := p.look(f, sample); err != nil || p.BytesOnly {
		return f, err
	}
	p.overwrote = f.overwrote
	f.times, f.devices, err = p.passes(sample, f.held)
	return f, err
}

// look runs each layer once with gradients, and finds the memory held until its backward.
func (p *prober) look(f *looked, sample []*torch.Tensor) error {
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
	f       *looked
	in, out []flow
}

// arrive makes the output, with a tuple of so many elements, the input of the next layer.
func (l *scan) arrive(tuple int) {
	l.f.at, l.f.tuples = append(l.f.at, l.out), append(l.f.tuples, tuple)
	l.in, l.out = l.out, nil
}

// copied copies a tensor, as a transfer between stages does. A repeated element of the output shares
// the first one's copy.
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

// run looks at layer i, and makes its output the input of the next. It frees the handles on each
// block of input and output: a block that then stays live is saved by the layer's graph. A skip that
// later layers need is copied first.
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
				f.t = l.c.Keep(l.c.Clone(f.t))
				l.drops = append(l.drops, f.t.Free)
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

// keepGraph keeps a tensor's graph, without its memory, while the layer is looked at.
func (l *scan) keepGraph(t *torch.Tensor) {
	if t.RequiresGrad() {
		defer l.c.SetGrad(l.c.SetGrad(true))
		l.c.Sum(t)
	}
}

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
