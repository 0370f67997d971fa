package autoremat

import (
	"slices"

	"penstock/nn"
	"penstock/profile"
	"penstock/remat"
)

// presence says of a unit's parameters whether they have gradients.
type presence int

const (
	missing presence = iota // none has
	partial
	there // all have
)

// presences looks at the parameters of each unit of the chain. bytes is those of the gradients that are not there.
func (m *Module) presences(chain profile.Chain) (out []presence, bytes []int64) {
	at := 0
	for i, n := range chain.Units {
		list := m.layers[at : at+n]
		at += n
		if i < chain.Prologue {
			continue
		}
		has, lacks, sum := 0, 0, int64(0)
		seen := map[*nn.Param]bool{}
		for _, l := range list {
			for _, p := range nn.Params(l.Layer) {
				switch owner := p.Owner(); {
				case seen[owner]:
				case owner.Tensor().HasGrad():
					has++
				default:
					lacks++
					sum += owner.Numel() * owner.DType().Size()
				}
				seen[p.Owner()] = true
			}
		}
		state := partial
		switch {
		case has == 0:
			state = missing
		case lacks == 0:
			state = there
		}
		out, bytes = append(out, state), append(bytes, sum)
	}
	return out, bytes
}

// output says which output the last layer's backward uses.
type output int

const (
	givenOut  output = iota // the last layer was saved before the loss: the caller holds its output
	madeAgain               // it is computed again after the loss: nobody else holds that output
)

// outputOf is that of operations, which are complete, on so many layers.
func outputOf(ops []remat.Op, layers int) output {
	loss := slices.Index(ops, remat.Op{Kind: remat.LossStep})
	if slices.Contains(ops[:loss], remat.Op{Kind: remat.ForwardSave, Layer: layers - 1}) {
		return givenOut
	}
	return madeAgain
}

// correction is that of a layer.
func (s *instance) correction(layer int, o output) *correction {
	if layer == len(s.corrections)-1 && o == madeAgain {
		return &s.madeAgain
	}
	return &s.corrections[layer]
}

// chainFor is the chain for a batch that comes while these gradients are there, and plans that use this output. The caller holds the input, or what the prologue made of it is held apart from the chain: it has none. Where a unit has
// gradients of some parameters only, the backward takes as much as in the worse of the two cases that were measured.
func (s *instance) chainFor(present []presence, lacks []int64, o output) remat.Chain {
	c := s.chain.Chain.WithoutInput()
	c.Layers = slices.Clone(c.Layers)
	for i := range c.Layers {
		l, later, more := &c.Layers[i], s.chain.Later.Layers[i], s.correction(i, o)
		setBackward(l, l.BackwardTmp-l.BackwardEarly+more.first)
		setBackward(&later, later.BackwardTmp-later.BackwardEarly+more.later)
		for _, l := range []*remat.Layer{l, &later} {
			l.ForwardTmp, l.ForwardNoGradTmp = max(0, l.ForwardTmp+more.save), max(0, l.ForwardNoGradTmp+more.plain)
		}
		switch present[i] {
		case there:
			*l = later
		case partial:
			first := l.WeightGradient + l.BackwardTmp - l.BackwardEarly
			most := max(first, later.WeightGradient+later.BackwardTmp-later.BackwardEarly)
			l.WeightGradient = min(lacks[i], l.WeightGradient)
			setBackward(l, most-l.WeightGradient)
		}
	}
	return c
}

// withLoss is a chain whose loss is known.
func withLoss(c remat.Chain, l loss) remat.Chain {
	c.Layers = slices.Clone(c.Layers)
	last := len(c.Layers) - 1
	c.Layers[last].Gradient = l.gradient
	c.Loss.Tmp = max(0, l.peak-l.gradient)
	rest := l.gradient
	c.GradientCarries = slices.Clone(c.GradientCarries)
	for i := range c.GradientCarries {
		if k := &c.GradientCarries[i]; k.To > last {
			k.Bytes = min(k.Bytes, rest)
			rest -= k.Bytes
		}
	}
	return c
}

// toSolve is a chain in which what the caller holds in backward, the output as well, is gradients of the last layer's parameters: it is there from the loss to the end. So it is for plans that have
// saved the last layer when the loss comes; for others the forecast finds more.
func toSolve(c remat.Chain, l loss) remat.Chain {
	c = withLoss(c, l)
	last := &c.Layers[len(c.Layers)-1]
	after := max(0, l.held+l.lent+last.Output)
	setBackward(last, last.BackwardTmp-last.BackwardEarly+l.held-after)
	last.WeightGradient += after
	return c
}

// setBackward sets what a backward takes beside what it makes.
func setBackward(l *remat.Layer, bytes int64) {
	l.BackwardTmp, l.BackwardEarly = max(bytes, 0), max(-bytes, 0)
}
