package profile

import (
	"slices"

	"penstock/remat"
	"penstock/segment"
	"penstock/torch"
)

// Deferred is what a unit leaves to the second part of a backward in two parts.
type Deferred struct {
	// Bytes is what the unit holds between both parts. Memory that two units hold counts for both,
	// and where the unit's input is a view of more, all of that counts.
	Bytes int64
	// Share is the second part's share of the time of both, from 0 to 1; 0 with Config.BytesOnly.
	Share float64
}

// parts measures what unit i defers. Its input is a copy, which nobody else holds. The
// gradients of its parameters are there.
func (p *prober) parts(i int) (out Deferred) {
	before := p.live()
	a := segment.Arrival{Tensors: p.copies(p.xs), Skips: p.copies(p.skips)}
	copies := p.live() - before
	if i == 0 {
		a.Wants, a.WantsSkips = p.wants(p.xs), p.wants(p.skips)
	}
	e := p.executeWith(i, a)
	defer e.Free()
	e.Again(i)
	p.do(e, remat.Op{Kind: remat.ForwardSave, Layer: i})
	if p.give(i, e) == nil {
		return out
	}
	e.Defer = true
	first := p.do(e, remat.Op{Kind: remat.Backward, Layer: i})
	xs, skips := e.TakeGrads(i)
	torch.FreeAll(xs)
	for _, list := range skips {
		torch.FreeAll(list)
	}
	for _, k := range p.s.Tied(i) {
		e.TakeTie(k).Free()
	}
	out.Bytes = p.live() - before
	if all := sizeOf(append(slices.Clone(p.xs), p.skips...)); all > copies { // as what they are views of
		out.Bytes += all - copies
	}
	begin := p.now()
	e.Weights(p.c)
	if took := p.now() - begin; !p.BytesOnly && took > 0 {
		out.Share = took.Seconds() / (took + first.took).Seconds()
	}
	return out
}

// copies makes copies of tensors, kept. A tensor that stands there twice stays one.
func (p *prober) copies(list []*torch.Tensor) []*torch.Tensor {
	out := make([]*torch.Tensor, len(list))
	for i, x := range list {
		if k := slices.Index(list[:i], x); k >= 0 {
			out[i] = out[k]
		} else if x != nil {
			out[i] = p.c.Keep(p.c.Clone(x))
		}
	}
	return out
}
