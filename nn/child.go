package nn

import (
	"fmt"
	"slices"

	"penstock.example/torch"
)

type child struct {
	name string
	m    Module
}

// Child declares a module inside this one: its parameters are listed under the name, and Ctx.Run
// may run it. A module has one parent.
func (b *Base) Child(name string, m Module) {
	b.mustBeFree(name)
	m.node().setParent(b, name)
	b.children = append(b.children, child{name, m})
}

func (b *Base) setParent(parent *Base, name string) {
	require(b.parent == nil, "module %q is already part of another module; make a second one and Share "+
		"its parameters", b.name)
	b.name, b.parent = name, parent
}

func (b *Base) mustBeFree(name string) {
	require(!slices.ContainsFunc(b.params, func(p named) bool { return p.name == name }) &&
		!slices.ContainsFunc(b.children, func(c child) bool { return c.name == name }),
		"%q is declared twice in one module", name)
}

// declares reports whether n is a child of b or, if deep is set, any descendant.
func (b *Base) declares(n *Base, deep bool) bool {
	return n.parent == b || slices.ContainsFunc(b.children, func(c child) bool {
		m := c.m.node()
		return m == n || deep && m.declares(n, true)
	})
}

// mustRun refuses to run a layer that is not a child of the running module or, if deep is set, not
// even a descendant. The layer's parameters would not be listed. Without a name it would draw the
// same random numbers as other layers.
//
// If no module runs, as in a training loop that calls a model's Forward, a layer without a parent
// is a model. A Ctx runs only one model, as two would have the same path.
func (c *Ctx) mustRun(l Layer, deep bool) {
	n := l.node()
	switch {
	case c.running != nil && c.running.node().declares(n, deep):
	case c.running != nil:
		c.fail("Run", nil, "%s is no declared child of %s, layer %q, which runs it; declare it with Child "+
			"in the constructor of that layer (embed nn.Base), and run it with Run", typeOf(l),
			typeOf(c.running), c.Path())
	case !deep && n.parent == nil && c.model != nil && c.model != n:
		c.fail("Run", nil, "%s is no part of the model that this Ctx has run; run it under a name with "+
			"RunNamed, or on another Ctx", typeOf(l))
	case !deep && c.model == nil:
		c.model = n
	}
}

// typeOf returns the name of a module's type, without the wrappers of this package.
func typeOf(m Module) string {
	switch w := m.(type) {
	case NamedLayer:
		return typeOf(w.Layer)
	case *tuple:
		return typeOf(w.Module)
	case checkpointed:
		return typeOf(w.Layer)
	case *operatorLayer:
		return "*nn." + w.kind
	case *conv:
		return "*nn." + w.kind
	case *norm:
		return "*nn." + w.kind
	case *lossLayer:
		return "the loss, which is no module"
	}
	return fmt.Sprintf("%T", m)
}

// require panics on a programming error.
func require(ok bool, format string, args ...any) {
	if !ok {
		panic("nn: " + fmt.Sprintf(format, args...))
	}
}

// fail panics with the *torch.Error of a layer that cannot take xs.
func (c *Ctx) fail(op string, xs []*torch.Tensor, format string, args ...any) {
	panic(&torch.Error{Op: op, Args: torch.Describe(xs), Device: c.Device(),
		Message: fmt.Sprintf(format, args...)})
}
