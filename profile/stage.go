package profile

import (
	"slices"

	"penstock/nn"
	"penstock/remat"
	"penstock/torch"
)

// stage measures a stage of the model, unit by unit. times are those of the model's layers.
func (p *prober) stage(first, last int, units []int, times []unitTimes) (chain Chain, err error) {
	p.inputGrad = p.InputGrad || slices.ContainsFunc(p.layers[:first], func(l nn.NamedLayer) bool { return len(nn.Params(l.Layer)) > 0 })
	if p.s, err = p.segment(first, last, units); err != nil {
		return chain, err
	}
	p.enter()
	entered, given := sizeOf(p.skips), sizeOf(p.xs)
	f := newFlows(p.s, p.xs, p.skips)
	var all []figures
	defer p.forget()
	for i, n := range units {
		if err := p.ctx.Err(); err != nil {
			return chain, err
		}
		list := p.layers[first : first+n]
		all = append(all, figures{name: nameOf(list), list: list})
		if times != nil {
			all[i].times = together(times[first : first+n])
		}
		if err := p.unit(i, f, all); err != nil {
			return chain, err
		}
		first += n
	}
	gives, sent := sizeOf(p.xs), sizeOf(p.skips)
	p.leave()
	chain = assemble(f, all)
	var timing []timed
	for _, u := range all {
		timing = append(timing, u.times[:]...)
	}
	chain.Timing = p.timing(timing)
	chain.Given, chain.Gives, chain.SkipsIn, chain.SkipsOut = given, gives, entered, sent
	chain.Units = units
	return chain, nil
}

// sizeOf is the bytes of the memory of tensors. Memory that several share counts once.
func sizeOf(list []*torch.Tensor) (sum int64) {
	seen := map[uintptr]bool{}
	for _, t := range list {
		if t == nil {
			continue
		}
		if id, bytes := t.Storage(); !seen[id] {
			seen[id] = true
			sum += bytes
		}
	}
	return sum
}

// nameOf names a unit after its only layer, or after its first and its last.
func nameOf(list []nn.NamedLayer) string {
	if len(list) == 1 {
		return list[0].Name
	}
	return list[0].Name + ".." + list[len(list)-1].Name
}

// enter finds the skips that earlier stages send to the stage.
func (p *prober) enter() {
	p.skips = make([]*torch.Tensor, len(p.s.Crossing(0)))
	for key, t := range p.sent {
		if at := p.s.Enters(key); at >= 0 && t != nil {
			p.skips[at] = p.c.Keep(p.c.Share(t))
		}
	}
}

// leave puts the skips that the stage stashes for later stages where those find them. The output of
// the stage is the input of the next.
func (p *prober) leave() {
	for _, r := range p.routes {
		if at := p.s.Leaves(r.Key); at >= 0 {
			if p.sent == nil {
				p.sent = map[nn.SkipKey]*torch.Tensor{}
			}
			p.sent[r.Key] = p.skips[at]
		}
	}
	p.skips = nil
}

// figures are the measurements of a unit.
type figures struct {
	name                    string
	list                    []nn.NamedLayer
	keep, save, back, again reading // of operations; again is a backward that finds gradients of the parameters
	weights                 int64   // bytes of gradients of parameters that a first backward makes
	statistics              int64   // bytes that a first forward gathers for deferred batch norms
	passes                  bool    // the unit has no backward
	deferred                Deferred
	times                   unitTimes
}

// unit measures the bytes of unit i, and makes its output the input of the next. all are the
// figures so far, of which those of the unit are the last.
func (p *prober) unit(i int, f *flows, all []figures) error {
	out := &all[i]
	return attempt(out.name, func() error {
		defer p.c.Close()
		defer p.dropHeld()
		for _, l := range out.list {
			defer prepare(p.c, l, p.Seed)()
		}
		mark := p.c.Mark()
		p.bytes(i, f, out)
		if i > 0 && (p.left[0].odd() || strided(p.xs) || strided(p.skips)) {
			p.asGiven(i-1, f, &all[i-1])
		}
		if p.Split && !out.passes {
			out.deferred = p.parts(i)
		}
		e := p.execute(i, true)
		defer e.Free()
		p.do(e, remat.Op{Kind: remat.ForwardKeep, Layer: i})
		xs, skips := e.Take(i + 1)
		p.move(xs, skips)
		p.c.Release(mark)
		return nil
	})
}

// move makes tensors, which the prober owns from now on, the input of the next unit. The input of
// this one is kept for asGiven.
func (p *prober) move(xs, skips []*torch.Tensor) {
	p.before.free()
	p.before = input{xs: p.xs, skips: p.skips}
	p.xs, p.skips = xs, skips
}

// input is the input of a unit.
type input struct{ xs, skips []*torch.Tensor }

func (b *input) free() {
	torch.FreeAll(b.xs)
	torch.FreeAll(b.skips)
	*b = input{}
}

func (p *prober) forget() {
	p.before.free()
	p.forgetLeft()
}

func (p *prober) forgetLeft() {
	for k := range p.left {
		p.left[k].free()
	}
}

// asGiven measures the backward of unit i again, from the gradients that the unit after it has
// left. They differ from plain ones in layout or in whose memory they share. Which gradients a
// backward copies, and where it can add in place, depends on that.
func (p *prober) asGiven(i int, f *flows, out *figures) {
	for _, l := range out.list {
		defer prepare(p.c, l, p.Seed)()
	}
	now := input{p.xs, p.skips}
	p.xs, p.skips = p.before.xs, p.before.skips
	defer func() { p.xs, p.skips = now.xs, now.skips }()
	for k, into := range []*reading{&out.back, &out.again} {
		e := p.execute(i, true)
		p.do(e, remat.Op{Kind: remat.ForwardSave, Layer: i})
		given := p.left[k].give(p, i, e)
		*into = p.do(e, remat.Op{Kind: remat.Backward, Layer: i})
		if k == 0 {
			left := f.backward(i, e, out.list, given)
			left.free()
		}
		e.Free()
	}
}

// bytes runs a unit by each operation, and reads the account.
func (p *prober) bytes(i int, f *flows, out *figures) {
	list := out.list
	// Running statistics move the first time only. What that takes counts in every forward.
	e := p.execute(i, false)
	once := p.do(e, remat.Op{Kind: remat.ForwardKeep, Layer: i})
	e.Free()
	e = p.execute(i, true)
	out.keep = p.do(e, remat.Op{Kind: remat.ForwardKeep, Layer: i})
	f.forward(i, e, p, list)
	e.Free()
	out.statistics = max(once.delta-out.keep.delta, 0)
	out.keep.peak = max(out.keep.peak, once.peak)

	e = p.execute(i, false)
	first := p.do(e, remat.Op{Kind: remat.ForwardSave, Layer: i})
	e.Free()
	for _, l := range list {
		zeroGrads(l)
	}
	e = p.execute(i, true)
	defer e.Free()
	out.save = p.do(e, remat.Op{Kind: remat.ForwardSave, Layer: i})
	out.save.peak = max(out.save.peak, first.peak)
	given := p.give(i, e)
	if i == p.s.Units()-1 {
		f.end = p.ended
	}
	out.passes = given == nil
	out.back = p.do(e, remat.Op{Kind: remat.Backward, Layer: i})
	out.weights = gradBytes(list)
	p.forgetLeft()
	p.left[0] = f.backward(i, e, list, given)

	again := p.execute(i, true)
	defer again.Free()
	p.do(again, remat.Op{Kind: remat.ForwardSave, Layer: i})
	given = p.give(i, again)
	out.again = p.do(again, remat.Op{Kind: remat.Backward, Layer: i})
	p.left[1] = f.backward(i, again, list, given)
}

// zeroGrads drops the gradients of a layer's parameters.
func zeroGrads(l nn.NamedLayer) {
	for _, s := range l.State() {
		if s.Trainable() {
			s.Tensor().SetGradOf(nil)
		}
	}
}

// gradBytes is the bytes of the gradients of the layers' parameters. Shared ones count once.
func gradBytes(list []nn.NamedLayer) (sum int64) {
	seen := map[*nn.Param]bool{}
	for _, l := range list {
		for _, s := range l.State() {
			if s.Trainable() && !seen[s.Owner()] && s.Tensor().HasGrad() {
				seen[s.Owner()] = true
				sum += s.Owner().Bytes()
			}
		}
	}
	return sum
}
