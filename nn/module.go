package nn

import (
	"slices"

	"penstock.example/torch"
)

// Module owns parameters, buffers and other modules. A type becomes one by embedding Base.
type Module interface {
	node() *Base
}

// Layer is a module that turns one tensor into another. Tuple makes a layer of tuples of tensors.
//
// Forward must depend only on x, the parameters and c, as a recomputation calls it again. It must
// not keep x or its result, nor start goroutines that use c. An operator that fails panics; the
// caller of Forward adds the layer's path and returns an error.
type Layer interface {
	Module
	Forward(c *Ctx, x *torch.Tensor) *torch.Tensor
}

// Base is embedded by every module. Its zero value is ready.
type Base struct {
	name     string // in the parent
	parent   *Base  // nil for a model
	params   []named
	children []child
	stashes  []SkipKey
	pops     []SkipKey
	eval     bool // see Eval
}

type named struct {
	name string
	p    *Param
}

func (b *Base) node() *Base { return b }

// Param declares a trainable parameter of float32. With an empty name it has the name of the
// module.
func (b *Base) Param(name string, init Init, shape ...int64) *Param {
	return b.declare(name, &Param{shape: shape, dtype: torch.Float32, init: init, trainable: true})
}

// Buffer declares state that is saved with the model but not trained.
func (b *Base) Buffer(name string, dtype torch.DType, init Init, shape ...int64) *Param {
	return b.declare(name, &Param{shape: shape, dtype: dtype, init: init, buffer: true})
}

// Share declares a parameter of another module, such as an embedding that is also the weight of a
// network's head, and returns the handle through which this module uses it. The parameter is
// listed, counted, saved and stepped once, under the name that comes first in the model. If a pipe
// puts the modules on different stages, the parameter lives on the first of these stages; the
// others have copies, which send their gradients there.
func (b *Base) Share(name string, p *Param) *Param {
	require(p != nil, "Share: the parameter is nil; a layer made without it has none to share")
	owner := p.Owner()
	owner.ties++
	return b.declare(name, &Param{shape: owner.shape, dtype: owner.dtype, buffer: owner.buffer, owner: owner})
}

func (b *Base) declare(name string, p *Param) *Param {
	require(p.Owner().init != nil, "the initialiser of the parameter %q is nil; nn.Zeros is one", name)
	b.mustBeFree(name)
	b.params = append(b.params, named{name, p})
	return p
}

// NamedParam is a parameter or buffer with its full dotted name, such as "layer1.0.conv1.weight".
type NamedParam struct {
	Name string
	*Param
}

// State lists the parameters and buffers of m in the order of declaration, depth first. A shared
// parameter is listed once, under its first name.
func State(m Module) []NamedParam {
	seen := map[*Param]bool{}
	var out []NamedParam
	walk(m, "", func(name string, p *Param) {
		if owner := p.Owner(); !seen[owner] {
			seen[owner] = true
			out = append(out, NamedParam{name, p})
		}
	})
	return out
}

// Shared lists m's handles on parameters that several modules use, in m or outside, in State's
// order.
func Shared(m Module) []NamedParam {
	var out []NamedParam
	walk(m, "", func(name string, p *Param) {
		if p.Shared() {
			out = append(out, NamedParam{name, p})
		}
	})
	return out
}

// Params lists the trainable parameters of m, as State does.
func Params(m Module) []NamedParam {
	return slices.DeleteFunc(State(m), func(p NamedParam) bool { return !p.Trainable() })
}

func Buffers(m Module) []NamedParam {
	return slices.DeleteFunc(State(m), func(p NamedParam) bool { return !p.buffer })
}

func walk(m Module, prefix string, visit func(name string, p *Param)) {
	n := m.node()
	for _, p := range n.params {
		visit(join(prefix, p.name), p.p)
	}
	for _, c := range n.children {
		walk(c.m, join(prefix, c.name), visit)
	}
}

// join returns the full name of a name in a module. An empty name adds nothing, so that a parameter
// can have its module's name and a child its parent's.
func join(module, name string) string {
	if module == "" || name == "" {
		return module + name
	}
	return module + "." + name
}

// Count is the number of trainable elements in m, from shapes alone.
func Count(m Module) int64 {
	var n int64
	for _, p := range Params(m) {
		n += p.Numel()
	}
	return n
}
