package nn

import (
	"fmt"
	"slices"
	"strconv"

	"penstock.example/torch"
)

// A model has modes: frozen parameters, and layers that run as in evaluation. Change modes between
// runs, and make the same changes in all processes that share the model.

// Freeze makes the parameters of m constants without gradients, which no update changes. A tied
// parameter is frozen wherever it is used. As in PyTorch, the batch norms of m still move their
// running statistics in training; Eval stops that.
func Freeze(m Module) { setTrainable(m, false) }

// Unfreeze makes all parameters of m trainable.
func Unfreeze(m Module) { setTrainable(m, true) }

func setTrainable(m Module, on bool) {
	for _, p := range State(m) {
		p.SetTrainable(on)
	}
}

// TrainOnly trains the layers of m whose full name (Layers) matches a pattern, in which * stands
// for any text. Freeze and Eval apply to all other layers, but a parameter tied to a trained layer
// is trained. If a pattern matches no layer with parameters, it returns an error and changes
// nothing.
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
				"the last is %s", pattern, firstFew(names), names[len(names)-1])
		}
	}
	Freeze(m)
	Train(m) // also the containers of the layers
	for i, l := range layers {
		if trained[i] {
			Unfreeze(l.Layer)
		} else {
			Eval(l.Layer)
		}
	}
	return nil
}

// Eval makes the layers of m run as in evaluation even in training: dropout drops nothing, batch
// norm uses its running statistics and does not move them. Gradients pass as before.
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

// Modes lists the settings of Freeze and Eval on a module and its parts. A plan is valid as long as
// the list stays the same.
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

// CopyBuffers copies the values of the buffers that exist, such as running statistics, to Go's
// memory, which no device's account counts. restore puts the values back without autograd noticing.
// Nobody may change the buffers during CopyBuffers or restore.
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

// OrRestore runs f. If f panics or ends its goroutine, the buffers of m get back their values from
// before, to the bit. A pipe's runs do this by themselves; outside of a pipe write
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
