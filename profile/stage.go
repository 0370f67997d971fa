package profile

import (
	"slices"

	"penstock/nn"
	"penstock/remat/plan"
	"penstock/torch"
)

// stage measures a stage of the model, unit by unit.
func (p *prober) stage(first, last int, units []int, lastStage bool) (chain Chain, err error) {
	p.loss = lastStage && p.Loss != nil && p.LossUnit
	if p.s, err = p.segment(first, last, units, p.loss); err != nil {
		return chain, err
	}
	p.inputGrad = p.InputGrad || slices.ContainsFunc(p.layers[:first], func(l nn.NamedLayer) bool { return len(nn.Params(l.Layer)) > 0 })
	p.done = first
	p.enter()
	n := p.s.Units()
	f := newFlows(p.s, p.xs, p.skips)
	var figures []figures
	layers := first
	for i := range n {
		if err := p.ctx.Err(); err != nil {
			return chain, err
		}
		name, list := "loss", []nn.NamedLayer(nil)
		if i < len(units) {
			list = p.layers[layers : layers+units[i]]
			name = nameOf(list)
			layers += units[i]
		}
		if p.Progress != nil {
			p.Progress(layers, len(p.layers))
		}
		one, err := p.unit(i, name, list, f)
		if err != nil {
			return chain, err
		}
		one.name = name
		figures = append(figures, one)
	}
	p.leave()
	chain = assemble(f, figures)
	chain.Units, chain.Tail = units, p.loss
	if lastStage && p.Loss != nil && !p.LossUnit {
		if err := attempt("loss", func() error { return p.lossOp(&chain) }); err != nil {
			return chain, err
		}
	}
	return chain, nil
}

// nameOf is that of a unit: of its only layer, or of the first and the last.
func nameOf(list []nn.NamedLayer) string {
	if len(list) == 1 {
		return list[0].Name
	}
	return list[0].Name + ".." + list[len(list)-1].Name
}

// enter finds the skips that the stage is sent.
func (p *prober) enter() {
	p.skips = make([]*torch.Tensor, len(p.s.Crossing(0)))
	for key, t := range p.sent {
		if at := p.s.Enters(key); at >= 0 && t != nil {
			p.skips[at] = p.c.Keep(p.c.Share(t))
		}
	}
}

// leave puts the skips that the stage sends where later ones find them. The tuple that it gives is the next one's.
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

// figures are what was measured of a unit.
type figures struct {
	name                    string
	keep, save, back, again reading // again: backward when the parameters have gradients already
	weights                 int64   // bytes of gradients of parameters that a first backward makes
	statistics              int64
	passes                  bool // has no backward
	seconds                 [3]float64
	spread                  Spread
	saved                   int64
}

// unit measures a unit and makes its output the input of the next.
func (p *prober) unit(i int, name string, list []nn.NamedLayer, f *flows) (out figures, err error) {
	err = attempt(name, func() error {
		defer p.c.Close()
		for _, l := range list {
			defer prepare(p.c, l, p.Seed)()
		}
		mark := p.c.Mark()
		if !p.BytesOnly {
			for range p.Warmup {
				p.once(i, true)
			}
		}
		p.bytes(i, list, f, &out)
		if !p.BytesOnly {
			if err := p.times(i, &out); err != nil {
				return err
			}
		}
		w := p.walk(i, true)
		defer w.Free()
		p.do(w, plan.Op{Kind: plan.ForwardKeep, Layer: i})
		xs, skips := w.Take(i + 1)
		p.move(xs, skips)
		p.c.Release(mark)
		return nil
	})
	return out, err
}

// move makes tensors, which it owns from now on, what the next unit is given.
func (p *prober) move(xs, skips []*torch.Tensor) {
	for _, list := range [][]*torch.Tensor{p.xs, p.skips} {
		for _, t := range list {
			t.Free()
		}
	}
	p.xs, p.skips = xs, skips
}

// bytes runs a unit by each operation and reads the account.
func (p *prober) bytes(i int, list []nn.NamedLayer, f *flows, out *figures) {
	// The first time running statistics move. Whatever that takes is counted in both.
	w := p.walk(i, false)
	once := p.do(w, plan.Op{Kind: plan.ForwardKeep, Layer: i})
	w.Free()
	w = p.walk(i, true)
	out.keep = p.do(w, plan.Op{Kind: plan.ForwardKeep, Layer: i})
	f.forward(i, w, p, list)
	w.Free()
	out.statistics = max(once.delta-out.keep.delta, 0)
	out.keep.peak = max(out.keep.peak, once.peak)

	w = p.walk(i, false)
	first := p.do(w, plan.Op{Kind: plan.ForwardSave, Layer: i})
	w.Free()
	for _, l := range list {
		zeroGrads(l)
	}
	w = p.walk(i, true)
	defer w.Free()
	out.save = p.do(w, plan.Op{Kind: plan.ForwardSave, Layer: i})
	out.save.peak = max(out.save.peak, first.peak)
	out.saved = out.save.delta
	given := p.give(i, w)
	if i == p.s.Units()-1 {
		f.end = p.ended
	}
	out.passes = given == nil
	out.back = p.do(w, plan.Op{Kind: plan.Backward, Layer: i})
	out.weights = gradBytes(list)
	f.backward(i, w, list, given)

	again := p.walk(i, true)
	defer again.Free()
	p.do(again, plan.Op{Kind: plan.ForwardSave, Layer: i})
	p.give(i, again)
	out.again = p.do(again, plan.Op{Kind: plan.Backward, Layer: i})
}

// zeroGrads drops the gradients that a layer's parameters have got.
func zeroGrads(l nn.NamedLayer) {
	for _, s := range l.State() {
		if s.Trainable() {
			s.Tensor().SetGradOf(nil)
		}
	}
}

// gradBytes are those of the gradients of the layers' parameters, of distinct memory.
func gradBytes(list []nn.NamedLayer) (sum int64) {
	seen := map[*nn.Param]bool{}
	for _, l := range list {
		for _, s := range l.State() {
			if s.Trainable() && !seen[s.Owner()] && s.Tensor().HasGrad() {
				seen[s.Owner()] = true
				sum += bytesOf(s.Owner())
			}
		}
	}
	return sum
}

// once is a forward without gradients, one with, and a backward, and how long each took.
func (p *prober) once(i int, withKeep bool) (times [3]float64) {
	mark := p.c.Mark()
	defer p.c.Release(mark)
	if withKeep {
		w := p.walk(i, true)
		times[0] = p.do(w, plan.Op{Kind: plan.ForwardKeep, Layer: i}).took.Seconds()
		w.Free()
	}
	w := p.walk(i, true)
	defer w.Free()
	times[1] = p.do(w, plan.Op{Kind: plan.ForwardSave, Layer: i}).took.Seconds()
	p.give(i, w)
	times[2] = p.do(w, plan.Op{Kind: plan.Backward, Layer: i}).took.Seconds()
	return times
}

// times takes the medians of the timed runs.
func (p *prober) times(i int, out *figures) error {
	var runs [3][]float64
	for range p.Repeats {
		if err := p.ctx.Err(); err != nil {
			return err
		}
		for k, t := range p.once(i, true) {
			runs[k] = append(runs[k], t)
		}
	}
	spread := [3]*float64{&out.spread.ForwardNoGrad, &out.spread.Forward, &out.spread.Backward}
	for k, list := range runs {
		slices.Sort(list)
		out.seconds[k] = list[len(list)/2]
		if out.seconds[k] > 0 {
			*spread[k] = (list[len(list)-1] - list[0]) / out.seconds[k]
		}
	}
	return nil
}
