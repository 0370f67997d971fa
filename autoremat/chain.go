package autoremat

import (
	"slices"

	"penstock.example/nn"
	"penstock.example/profile"
	"penstock.example/remat"
)

// presence says whether the parameters of a unit have gradients.
type presence int

const (
	missing presence = iota // no parameter has one
	partial
	complete // every parameter has one
)

// presences returns, by unit of the chain, which gradients are present, and the bytes of those that
// are not.
func (m *Module) presences(chain profile.Chain) (out []presence, bytes []int64) {
	at := 0
	for i, n := range chain.Units {
		list := m.layers[at : at+n]
		at += n
		if i < chain.Prologue {
			continue
		}
		has, without, sum := 0, 0, int64(0)
		seen := map[*nn.Param]bool{}
		for _, l := range list {
			for _, p := range nn.Params(l.Layer) {
				switch owner := p.Owner(); {
				case seen[owner]:
				case owner.Tensor().HasGrad():
					has++
				default:
					without++
					sum += owner.Bytes()
				}
				seen[p.Owner()] = true
			}
		}
		state := partial
		switch {
		case has == 0:
			state = missing
		case without == 0:
			state = complete
		}
		out, bytes = append(out, state), append(bytes, sum)
	}
	return out, bytes
}

// output says which tensor the last layer's backward takes as its output.
type output int

const (
	outputSaved      output = iota // the one that the caller holds: the layer was saved before the loss
	outputRecomputed               // another one, which nobody else holds: the layer is recomputed after the loss
)

// outputOf returns which output complete operations on a chain of so many layers use.
func outputOf(ops []remat.Op, layers int) output {
	loss := slices.Index(ops, remat.Op{Kind: remat.LossStep})
	if slices.Contains(ops[:loss], remat.Op{Kind: remat.ForwardSave, Layer: layers - 1}) {
		return outputSaved
	}
	return outputRecomputed
}

// correction returns the correction of a layer.
func (s *instance) correction(layer int, o output) *correction {
	if layer == len(s.corrections)-1 && o == outputRecomputed {
		return &s.lastRecomputed
	}
	return &s.corrections[layer]
}

// chainFor returns the chain for a step that begins with these gradients present, under plans that
// use output o. The chain has no input: the caller holds it, or what the prologue made of it is
// held apart.
//
// Where a unit has gradients of some parameters only, its backward is charged the larger of the two
// measured cases.
func (s *instance) chainFor(present []presence, missingBytes []int64, o output) remat.Chain {
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
		case complete:
			*l = later
		case partial:
			first := l.WeightGradient + l.BackwardTmp - l.BackwardEarly
			most := max(first, later.WeightGradient+later.BackwardTmp-later.BackwardEarly)
			l.WeightGradient = min(missingBytes[i], l.WeightGradient)
			setBackward(l, most-l.WeightGradient)
		}
	}
	return c
}

// withLoss returns the chain with the costs of a loss.
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

// solverChain returns a chain that charges what the caller holds during backward, the output
// included, as gradients of the last layer's parameters: these are live from the loss to the end.
//
// This is exact for plans that save the last layer before the loss. For others the forecast may be
// higher.
func solverChain(c remat.Chain, l loss) remat.Chain {
	c = withLoss(c, l)
	last := &c.Layers[len(c.Layers)-1]
	after := max(0, l.held+l.lent+last.Output)
	setBackward(last, last.BackwardTmp-last.BackwardEarly+l.held-after)
	last.WeightGradient += after
	return c
}

// setBackward sets the bytes that a backward takes beside its results. A negative number is what it
// frees early.
func setBackward(l *remat.Layer, bytes int64) {
	l.BackwardTmp, l.BackwardEarly = max(bytes, 0), max(-bytes, 0)
}
