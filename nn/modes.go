package nn

import (
	"fmt"
	"slices"
	"strconv"

	"penstock.example/torch"
)

// Modes of a part of a model: frozen parameters, and layers that run as in evaluation. They are set
// between runs, and alike in all processes that share the model.

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

// TrainOnly trains the layers of m, by their full names (Layers), that one of the patterns matches, in
// which * stands for any text. All others are frozen and run as in evaluation, as Freeze and Eval do; a
// parameter that is tied to a trained layer's is trained. It returns an error, and changes nothing,
// if a pattern matches no layer with parameters.
func TrainOnly(m *Sequential, patterns ...string) error {
	layers := m.Layers()
	trained := make([]bool, len(layers))
	for _, pattern := range patterns {
		found := false
		var names []string
		for i, l := range layers {
			names = append(names, strconv.Quote(l.Name))
			if Match(pattern, l.Name) {
				trained[i] = true
				found = found || slices.ContainsFunc(State(l.Layer),
					func(p NamedParam) bool { return !p.IsBuffer() })
			}
		}
		if !found {
			return fmt.Errorf("nn: TrainOnly: no layer with parameters is named %q; there are %s, and "+
				"the last is %s",
				pattern, some(names), names[len(names)-1])
		}
	}
	Freeze(m)
	Train(m) // also what the layers stand in, whose evaluation would be theirs
	for i, l := range layers {
		if trained[i] {
			Unfreeze(l.Layer)
		} else {
			Eval(l.Layer)
		}
	}
	return nil
}

// Eval makes the layers of m run as in evaluation where a run trains: dropout drops nothing, batch
// norm uses its running statistics and keeps them. Gradients go through as ever.
func Eval(m Module) { setEval(m, true) }

// Train undoes Eval.
func Train(m Module) { setEval(m, false) }

func setEval(m Module, on bool) {
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
func ModesOf(m Module) *Modes { return &Modes{m, modesOf(m, nil)} }

// Changed reports whether the modes are others than when it was asked before, or when they were
// remembered. It is not safe for concurrent use.
func (m *Modes) Changed() bool {
	was := m.seen
	m.seen = modesOf(m.module, nil)
	return !slices.Equal(was, m.seen)
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

// BufferCopy is a copy of buffers, such as running statistics. A run that fails restores them from
// it. The copy lies in Go's memory: no device's account counts it and no limit refuses it. The zero
// value is empty. Take reuses the memory of the copy before. It belongs to one goroutine at a time.
type BufferCopy struct {
	buffers []NamedParam
	values  [][]byte
}

// Take copies the buffers that exist and forgets the copy before. Nobody may change them meanwhile.
func (b *BufferCopy) Take(buffers []NamedParam) {
	b.buffers = b.buffers[:0]
	for _, p := range buffers {
		if !p.Exists() {
			continue
		}
		at, size := len(b.buffers), int(p.Bytes())
		if at == len(b.values) {
			b.values = append(b.values, nil)
		}
		if len(b.values[at]) != size {
			b.values[at] = make([]byte, size)
		}
		torch.BytesInto(b.values[at], p.value())
		b.buffers = append(b.buffers, p)
	}
}

// Restore gives the buffers the values that were copied. Autograd does not see it.
func (b *BufferCopy) Restore() {
	for i, p := range b.buffers {
		err := torch.SetBytes(p.value(), b.values[i])
		require(err == nil, "putting back the buffer %s: %v", p.Name, err)
	}
}

// OrRestore runs f. If f panics or ends its goroutine, the buffers of m get the values back that
// they had before, to the bit, whoever changed them. Use it for forwards and steps outside of a
// pipe; a pipe's runs do this by themselves:
//
//	err := torch.Try(func() { nn.OrRestore(model, func() { step(model) }) })
func OrRestore(m Module, f func()) {
	var before BufferCopy
	before.Take(Buffers(m))
	done := false
	defer func() {
		if !done {
			before.Restore()
		}
	}()
	f()
	done = true
}
