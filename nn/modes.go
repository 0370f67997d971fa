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
		p.SetTrainable(false)
	}
}

// Unfreeze makes all parameters of m trainable, those frozen one by one as well.
func Unfreeze(m Module) {
	for _, p := range State(m) {
		p.SetTrainable(true)
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

// Modes lists what Freeze and Eval have set on a module and its parts. What depends on it, such as a
// plan, holds as long as the list is the same.
func Modes(m Module) []bool {
	b := m.node()
	modes := []bool{b.eval}
	for _, p := range b.params {
		modes = append(modes, p.p.Trainable())
	}
	for _, c := range b.children {
		modes = append(modes, Modes(c.m)...)
	}
	return modes
}

// CopyBuffers copies those of buffers that exist, such as running statistics, and returns a function that
// puts the values back, which autograd does not see. The copy lies in Go's memory: no device's account
// counts it. Nobody may change the buffers meanwhile.
func CopyBuffers(buffers []NamedParam) (restore func()) {
	values := make([][]byte, len(buffers))
	for i, p := range buffers {
		if p.Exists() {
			values[i] = torch.Bytes(p.value())
		}
	}
	return func() {
		for i, p := range buffers {
			if values[i] != nil {
				err := torch.SetBytes(p.value(), values[i])
				require(err == nil, "putting back the buffer %s: %v", p.Name, err)
			}
		}
	}
}

// OrRestore runs f. If f panics or ends its goroutine, the buffers of m get the values back that
// they had before, to the bit, whoever changed them. Use it for forwards and steps outside of a
// pipe; a pipe's runs do this by themselves:
//
//	err := torch.Try(func() { nn.OrRestore(model, func() { step(model) }) })
func OrRestore(m Module, f func()) {
	restore := CopyBuffers(Buffers(m))
	done := false
	defer func() {
		if !done {
			restore()
		}
	}()
	f()
	done = true
}
