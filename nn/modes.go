package nn

import (
	"slices"

	"penstock/internal/arg"
)

// What is set on a part of a model for all runs that follow: constants, and layers that run as in
// evaluation. Everything here is called between runs. Where several processes share a model, all
// set the same.

// Freeze makes the parameters of m constants: they have no gradients, which are dropped, and no
// update changes them. A tied parameter is frozen wherever it is used. Batch norms of m still move
// their running statistics in training, as PyTorch's do; Eval keeps these too.
func Freeze(m Module) {
	for _, p := range State(m) {
		p.setTrainable(false)
	}
}

// Unfreeze makes all parameters of m trainable, those frozen one by one as well.
func Unfreeze(m Module) {
	for _, p := range State(m) {
		if !p.IsBuffer() {
			p.setTrainable(true)
		}
	}
}

// Eval makes the layers of m run as in evaluation where a run trains: dropout drops nothing, batch
// norm uses its running statistics and keeps them. Gradients go through as ever.
func Eval(m Module) { setEval(m, true) }

// Train undoes Eval.
func Train(m Module) { setEval(m, false) }

func setEval(m Module, on bool) {
	arg.Must(m, "nn: Eval or Train: the module", "a model or a part of one")
	b := m.node()
	b.eval = on
	for _, c := range b.children {
		setEval(c.m, on)
	}
}

// Modes is what Freeze and Eval have set on a module and its parts, for those who keep what depends
// on it, such as plans.
type Modes struct {
	module Module
	seen   []bool
}

// ModesOf remembers the modes of m.
func ModesOf(m Module) *Modes {
	arg.Must(m, "nn: ModesOf: the module", "a model")
	return &Modes{m, modesOf(m, nil)}
}

// Changed reports whether the modes are others than when it was asked before, or when they were
// remembered. It is not safe for concurrent use.
func (m *Modes) Changed() bool {
	now := modesOf(m.module, make([]bool, 0, len(m.seen)))
	same := slices.Equal(now, m.seen)
	m.seen = now
	return !same
}

func modesOf(m Module, seen []bool) []bool {
	b := m.node()
	seen = append(seen, b.eval)
	for _, p := range b.params {
		seen = append(seen, p.p.Trainable())
	}
	for _, c := range b.children {
		seen = modesOf(c.m, seen)
	}
	return seen
}
