package nn

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"penstock.example/torch"
)

// child is a module that another one has declared.
type child struct {
	name string
	m    Module
}

// Child declares a module inside this one: its parameters are listed under the name, and Ctx.Run
// may run it. A module has one parent.
func (b *Base) Child(name string, m Module) {
	b.mustBeFree(name)
	n := m.node()
	if n.parent != nil {
		panic(fmt.Sprintf("nn: module %q is already part of another module; make a second one and Share its parameters", n.name))
	}
	n.name, n.parent = name, b
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

// declares reports whether n is a child of b, or with deep a descendant. The parents of n are
// searched first. The children of b are searched for a b that is a copy: its children have the
// original as their parent.
func (b *Base) declares(n *Base, deep bool) bool {
	for p := n.parent; p != nil; p = p.parent {
		if p == b {
			return true
		}
		if !deep {
			break
		}
	}
	return slices.ContainsFunc(b.children, func(c child) bool {
		m := c.m.node()
		return m == n || deep && m.declares(n, true)
	})
}

// mustRun refuses to run a layer that the running module has not declared. Its parameters would be
// in no list, and its random numbers would equal those of any other layer without a name. With deep
// a descendant may run as well.
//
// Outside of all modules, as in a training loop that calls a model's Forward, there is no running
// module. There a layer without a parent counts as a model. A Ctx runs one such model: a second one
// would have no name of its own.
func (c *Ctx) mustRun(l Layer, deep bool) {
	n := l.node()
	if c.running == nil {
		if !deep {
			c.mustBeModel(l, n)
		}
		return
	}
	if b := c.running.node(); n.parent == b || b.declares(n, deep) {
		return
	}
	who := typeOf(c.running)
	if loss, ok := c.running.(*lossLayer); ok {
		c.refuseRun("%s is run by the loss %T, which is no module; embed nn.Base in the loss and %s",
			typeOf(l),
			cmp.Or(loss.loss, c.loss), callChild(l, "loss"))
	}
	c.refuseRun("%s is no declared child of %s, layer %q, which runs it; %s, and run it with Run instead of calling its Forward",
		typeOf(l), who, c.Path(), callChild(l, who))
}

// mustBeModel refuses a layer without a parent, run outside of all modules, that is not the model
// that c has run before.
func (c *Ctx) mustBeModel(l Layer, n *Base) {
	root := n
	for root.parent != nil {
		root = root.parent
	}
	if c.model == nil {
		c.model = root
	}
	if n == root && root != c.model {
		c.refuseRun("%s is no declared child of the model that this Ctx has run; %s; if it is a model of its own, run it under a name with RunNamed, or on another Ctx",
			typeOf(l), callChild(l, "model"))
	}
}

// callChild is the text of the call of Child that a module lacks.
func callChild(l Layer, who string) string {
	t := typeOf(l)
	name := strings.ToLower(t[strings.LastIndexAny(t, "*.")+1:])
	return fmt.Sprintf("call Child(%q, the %s) of the %s where it is made", name, t, who)
}

func (c *Ctx) refuseRun(format string, args ...any) {
	panic(&torch.Error{Op: "Run", Device: c.Device(), Message: fmt.Sprintf(format, args...)})
}

// typeOf is the type of a module without the wrappers of this package.
func typeOf(m Module) string {
	switch w := m.(type) {
	case NamedLayer:
		return typeOf(w.Layer)
	case *tuple:
		return typeOf(w.Module)
	case checkpointed:
		return typeOf(w.Layer)
	}
	return fmt.Sprintf("%T", m)
}

// A constructor that is called with values no layer can have panics: it is a mistake in the
// program, and the stack shows where. The message names the value and says what would do.

func require(ok bool, format string, args ...any) {
	if !ok {
		panic("nn: " + fmt.Sprintf(format, args...))
	}
}

func requirePositive(layer, what string, n int64) {
	require(n > 0, "%s: %s is %d; it must be at least 1", layer, what, n)
}

func requireProbability(layer, what string, p float64) {
	require(p >= 0 && p <= 1, "%s: %s is %v; it must be from 0 to 1", layer, what, p)
}

// refuseInput panics with the *torch.Error of a layer that cannot take x. op names the layer's operator.
func (c *Ctx) refuseInput(op string, x *torch.Tensor, format string, args ...any) {
	panic(&torch.Error{Op: op, Args: []string{x.String()}, Device: c.Device(), Message: fmt.Sprintf(format, args...)})
}
