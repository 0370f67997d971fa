package nn

import (
	"fmt"
	"strconv"

	"penstock/torch"
)

// Module is anything that owns parameters, buffers and other modules. A type becomes one by embedding Base.
type Module interface {
	node() *Base
}

// Layer is a module that turns one tensor into another.
//
// Forward must depend on nothing but x, the parameters and c: it is called again, on the same input, when activations are recomputed. It must not keep x or what
// it returns, nor start goroutines that use c. Operators that fail panic; the caller adds coordinates and makes it an error.
type Layer interface {
	Module
	Forward(c *Ctx, x *torch.Tensor) *torch.Tensor
}

// InPlace is implemented by layers that overwrite their input. A pipe gives such a layer a copy where the input is still needed.
type InPlace interface {
	// OverwritesInput says that Forward changes x.
	OverwritesInput() bool
}

// Base is embedded by every module. Its zero value is ready.
type Base struct {
	name     string // in the parent
	owned    bool   // has a parent
	params   []named
	children []child
}

type named struct {
	name string
	p    *Param
}

type child struct {
	name string
	m    Module
}

func (b *Base) node() *Base { return b }

// Param declares a trainable parameter of float32.
func (b *Base) Param(name string, init Init, shape ...int64) *Param {
	p := &Param{shape: shape, dtype: torch.Float32, init: init, trainable: true}
	return b.Share(name, p)
}

// Buffer declares state that is saved with the model but not trained.
func (b *Base) Buffer(name string, dtype torch.DType, init Init, shape ...int64) *Param {
	p := &Param{shape: shape, dtype: dtype, init: init, buffer: true}
	return b.Share(name, p)
}

// Share declares a parameter that another module has declared too.
func (b *Base) Share(name string, p *Param) *Param {
	b.mustBeFree(name)
	b.params = append(b.params, named{name, p})
	return p
}

// Child declares a module inside this one. A module has one parent.
func (b *Base) Child(name string, m Module) {
	b.mustBeFree(name)
	n := m.node()
	if n.owned {
		panic(fmt.Sprintf("nn: module %q is already part of another module; make a second one and Share its parameters", n.name))
	}
	n.name, n.owned = name, true
	b.children = append(b.children, child{name, m})
}

func (b *Base) mustBeFree(name string) {
	for _, p := range b.params {
		if p.name == name {
			panic(fmt.Sprintf("nn: %q is declared twice in one module", name))
		}
	}
	for _, c := range b.children {
		if c.name == name {
			panic(fmt.Sprintf("nn: %q is declared twice in one module", name))
		}
	}
}

// NamedParam is a parameter or buffer with its full dotted name, such as "layer1.0.conv1.weight".
type NamedParam struct {
	Name string
	*Param
}

// State lists the parameters and buffers of m in the order of declaration, depth first. A shared one is listed once, under its first name.
func State(m Module) []NamedParam {
	seen := map[*Param]bool{}
	var out []NamedParam
	walk(m, "", func(name string, p *Param) {
		if !seen[p] {
			seen[p] = true
			out = append(out, NamedParam{name, p})
		}
	})
	return out
}

// Params lists the trainable parameters of m, as State does.
func Params(m Module) []NamedParam {
	return filter(State(m), func(p NamedParam) bool { return p.trainable })
}

// Buffers lists the buffers of m, as State does.
func Buffers(m Module) []NamedParam {
	return filter(State(m), func(p NamedParam) bool { return p.buffer })
}

func filter(in []NamedParam, keep func(NamedParam) bool) []NamedParam {
	var out []NamedParam
	for _, p := range in {
		if keep(p) {
			out = append(out, p)
		}
	}
	return out
}

func walk(m Module, prefix string, visit func(name string, p *Param)) {
	n := m.node()
	for _, p := range n.params {
		visit(prefix+p.name, p.p)
	}
	for _, c := range n.children {
		walk(c.m, prefix+c.name+".", visit)
	}
}

// Count is the number of trainable elements in m, from shapes alone.
func Count(m Module) int64 {
	var n int64
	for _, p := range Params(m) {
		n += p.Numel()
	}
	return n
}

// Sequential runs layers one after the other. It is what a pipe partitions.
type Sequential struct {
	Base
	layers []Layer
}

// NewSequential makes a Sequential whose children are named "0", "1", ...
func NewSequential(layers ...Layer) *Sequential {
	s := &Sequential{}
	for i, l := range layers {
		s.Add(strconv.Itoa(i), l)
	}
	return s
}

// Add appends a layer under a name and returns s.
func (s *Sequential) Add(name string, l Layer) *Sequential {
	s.Child(name, l)
	s.layers = append(s.layers, l)
	return s
}

// Len is the number of children.
func (s *Sequential) Len() int { return len(s.layers) }

// Forward runs the layers in order. Each activation is let go of as soon as the next one exists, unless autograd keeps it.
func (s *Sequential) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor { return c.Run(x, s.layers...) }

// OverwritesInput says whether the first layer does.
func (s *Sequential) OverwritesInput() bool {
	if len(s.layers) == 0 {
		return false
	}
	first, ok := s.layers[0].(InPlace)
	return ok && first.OverwritesInput()
}

// NamedLayer is a layer with its full dotted name in the model.
type NamedLayer struct {
	Name string
	Layer
}

// Layers lists the layers of s with nested Sequentials flattened: what partitions count. Names do not depend on how the model is cut.
func (s *Sequential) Layers() []NamedLayer {
	var out []NamedLayer
	for _, l := range s.layers {
		name := l.node().name
		nested, ok := l.(*Sequential)
		if !ok {
			out = append(out, NamedLayer{name, l})
			continue
		}
		for _, n := range nested.Layers() {
			out = append(out, NamedLayer{name + "." + n.Name, n.Layer})
		}
	}
	return out
}

// State lists a layer's parameters and buffers with their full names in the model.
func (l NamedLayer) State() []NamedParam {
	out := State(l.Layer)
	for i := range out {
		out[i].Name = l.Name + "." + out[i].Name
	}
	return out
}
