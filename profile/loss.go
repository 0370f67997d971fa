package profile

import (
	"penstock.example/remat"
	"penstock.example/torch"
)

// lossOp measures the loss after the last layer of a chain, forward and backward at once. in is the
// model's output.
func (p *prober) lossOp(in input, times []unitTimes) (out remat.Loss, err error) {
	defer func(was bool) { p.inputGrad = was }(p.inputGrad)
	p.inputGrad = true
	if p.s, err = p.segment(p.model, len(p.layers), nil); err != nil {
		return out, err
	}
	err = attempt("loss", func() error {
		defer p.c.Close()
		defer p.dropHeld()
		e := p.execute(0, input{xs: in.xs}, false)
		saved := p.do(e, remat.Op{Kind: remat.ForwardSave})
		ys, _ := e.Saved(0)
		// The caller holds the loss through the backward, and its gradient too.
		loss := p.owned(p.c.Keep(p.c.Share(ys[0])))
		seed := p.owned(p.c.Keep(p.c.OnesLike(loss)))
		e.GiveGrads(1, p.shared([]*torch.Tensor{seed}), nil)
		backward := p.do(e, remat.Op{Kind: remat.Backward})
		xs, _ := e.TakeGrads(0)
		for _, g := range xs {
			p.owned(g)
		}
		out.Tmp = max(saved.peak, saved.delta+sizeOf([]*torch.Tensor{seed})+backward.peak) - sizeOf(xs)
		if times != nil {
			out.Backward = micros(times[p.model:], forward) + micros(times[p.model:], firstBackward)
		}
		return nil
	})
	return out, err
}
