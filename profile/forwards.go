package profile

import (
	"slices"

	"penstock.example/nn"
	"penstock.example/remat"
	"penstock.example/torch"
)

// runs is how many kinds of runs of a unit there are, kinds how many of backwards.
const (
	runs  = int(remat.Again) + 1
	kinds = int(remat.AddsLater) + 1
)

// forwards measures the forwards of a stage's units. p has the input of the stage, and then that of
// the next.
func (p *prober) forwards(st *staged) error {
	p.s, p.inputGrad = st.s, st.inputGrad
	if err := attempt(st.all[0].name, func() error { p.enter(st); return nil }); err != nil {
		return err
	}
	st.flows = newFlows(st, p.xs, p.skips)
	st.given, st.skipsIn = sizeOf(p.xs), sizeOf(p.skips)
	st.held[0] = input{p.shared(p.xs), p.shared(p.skips)}
	at := st.first
	for i, n := range st.units {
		if err := p.ctx.Err(); err != nil {
			return err
		}
		p.tell(float64(at) / float64(len(p.layers)))
		if i > 0 {
			p.holdInput(st, i)
		}
		if err := p.forward(st, i); err != nil {
			return err
		}
		at += n
	}
	st.gives, st.skipsOut = sizeOf(p.xs), sizeOf(p.skips)
	return p.leave(st)
}

// holdInput keeps the input of a unit for its backwards, where there is room: evenly over the units. Otherwise it is
// made again.
func (p *prober) holdInput(st *staged, i int) {
	if p.Device.Kind != torch.KindCPU || p.Device.Memory().Limit > 0 || p.isLean {
		return
	}
	bytes := sizeOf(slices.Concat(p.xs, p.skips))
	if part := windowBytes / int64(len(p.layers)) * int64(st.first+i+1); p.inputs+bytes <= part {
		p.inputs += bytes
		st.held[i] = input{p.shared(p.xs), p.shared(p.skips)}
	}
}

// enter finds the skips that earlier stages send to the stage.
func (p *prober) enter(st *staged) {
	p.skips = make([]*torch.Tensor, len(p.s.Crossing(0)))
	for key, sent := range p.sent {
		at := p.s.Enters(key)
		switch {
		case at < 0 || sent.t == nil:
		case p.apart(sent.stage, st.number):
			p.skips[at] = p.c.Keep(p.c.CopyHere(sent.t))
		default:
			p.skips[at] = p.c.Keep(p.c.Share(sent.t))
		}
	}
}

// leave puts the skips that the stage stashes for later stages where those find them, and makes the
// output of the stage the input of the next.
func (p *prober) leave(st *staged) error {
	for _, r := range p.routes {
		if at := p.s.Leaves(r.Key); at >= 0 {
			if p.sent == nil {
				p.sent = map[nn.SkipKey]stashed{}
			}
			p.sent[r.Key] = stashed{p.skips[at], st.number}
		}
	}
	p.skips = nil
	if st.number == len(p.Balance)-1 || !p.apart(st.number, st.number+1) {
		return nil
	}
	return attempt(nameOf(p.layers[st.first:st.last]), func() error {
		copies := p.transferred(p.xs)
		torch.FreeAll(p.xs)
		p.xs = copies
		return nil
	})
}

// stashed is a skip that a stage has stashed for later ones.
type stashed struct {
	t     *torch.Tensor
	stage int
}

// transferred copies tensors as they are copied to another device, kept. A tensor that stands there
// twice stays one.
func (p *prober) transferred(list []*torch.Tensor) []*torch.Tensor {
	once, at := torch.Distinct(list)
	copies := make([]*torch.Tensor, len(once))
	for i, t := range once {
		if t != nil {
			copies[i] = p.c.CopyHere(t)
		}
	}
	for _, t := range copies { // not before: a copy that fails would leave those before it
		if t != nil {
			p.c.Keep(t)
		}
	}
	out := make([]*torch.Tensor, len(list))
	for i, k := range at {
		out[i] = copies[k]
	}
	return out
}

// forward measures the forwards of unit i, and makes its output the input of the next.
func (p *prober) forward(st *staged, i int) error {
	out := &st.all[i]
	return attempt(out.name, func() error {
		defer p.c.Close()
		defer p.dropHeld()
		for _, l := range out.list {
			defer p.ready(l)()
		}
		mark := p.c.Mark()
		p.saves(st, i, out)
		xs, skips := p.keeps(st, i, out)
		torch.FreeAll(p.xs)
		torch.FreeAll(p.skips)
		p.xs, p.skips = xs, skips
		p.c.Release(mark)
		return nil
	})
}

// next is the output of unit i.
func (p *prober) next(i int) (xs, skips []*torch.Tensor) {
	e := p.execute(i, true)
	defer e.Free()
	p.do(e, remat.Op{Kind: remat.ForwardKeep, Layer: i})
	return e.Take(i + 1)
}

// keeps measures the forwards without gradients, and returns the unit's output. Running statistics move in a first
// run alone. Deferred ones are begun on the first micro-batch, and added to on later ones.
func (p *prober) keeps(st *staged, i int, out *figures) (xs, skips []*torch.Tensor) {
	op := remat.Op{Kind: remat.ForwardKeep, Layer: i}
	run := func(again bool) (r reading) {
		e := p.execute(i, again)
		defer e.Free()
		if r = p.do(e, op); again {
			xs, skips = e.Take(i + 1)
			st.flows.forward(i, xs, skips, p, out.list)
		}
		return r
	}
	ended := false
	defer func() {
		if !ended { // a commit may fail
			torch.FreeAll(xs)
			torch.FreeAll(skips)
		}
	}()
	p.deferred = nn.NewDeferred()
	defer p.deferred.Free()
	out.keep[remat.FirstOfStep] = run(false)
	out.keep[remat.FirstOfBatch] = out.keep[remat.FirstOfStep]
	if p.DeferredBatchNorm {
		out.keep[remat.FirstOfBatch] = run(false)
	}
	out.keep[remat.Again] = run(true)
	out.statistics = max(out.keep[remat.FirstOfStep].delta-out.keep[remat.Again].delta, 0)
	if out.statistics > 0 {
		out.commit = p.read(func() { p.deferred.Commit(nn.NewCtx(p.c, nn.Config{})) }).peak
	}
	ended = true
	return xs, skips
}

// saves measures the forwards with gradients. After the model's last unit it makes ones the gradients of
// its output.
func (p *prober) saves(st *staged, i int, out *figures) {
	op := remat.Op{Kind: remat.ForwardSave, Layer: i}
	p.deferred = nn.NewDeferred()
	defer p.deferred.Free()
	for run := range runs {
		if remat.Run(run) == remat.FirstOfBatch && !p.DeferredBatchNorm {
			out.save[run] = out.save[remat.FirstOfStep]
			continue
		}
		e := p.execute(i, remat.Run(run) == remat.Again)
		out.save[run] = p.do(e, op)
		if remat.Run(run) == remat.Again {
			xs, skips := e.Saved(i)
			out.passes = !slices.ContainsFunc(slices.Concat(xs, skips), func(t *torch.Tensor) bool { return t != nil && t.RequiresGrad() })
			if st.number == len(p.Balance)-1 && i == len(st.units)-1 {
				p.ones(xs)
			}
		}
		e.Free()
	}
}
