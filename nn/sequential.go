package nn

import (
	"slices"
	"strconv"
	"strings"

	"penstock.example/torch"
)

// Sequential runs layers one after the other. A pipe cuts a Sequential into stages.
type Sequential struct {
	Base
	layers []Layer
}

// NewSequential makes a Sequential with children named "0", "1", ...
func NewSequential(layers ...Layer) *Sequential {
	s := &Sequential{}
	for i, l := range layers {
		s.Add(strconv.Itoa(i), l)
	}
	return s
}

// Add appends a layer under a name and returns s. With an empty name the layer has the name of s.
func (s *Sequential) Add(name string, l Layer) *Sequential {
	s.Child(name, l)
	s.layers = append(s.layers, l)
	return s
}

// Replace puts l in place of the layer with a name, dotted for a layer of a nested Sequential, and
// returns the old layer. The caller must Free its parameters, except those that layers of the model
// share. Call it before a pipe or a plan is made of the model. It panics if no layer has the name
// or if l has a parent.
func (s *Sequential) Replace(name string, l Layer) Layer {
	at, i := s.find(name)
	require(at != nil, "Replace: there is no layer %q", name)
	old := at.layers[i]
	was, own := old.node(), at.children[i].name
	l.node().setParent(&at.Base, own)
	at.children, at.layers = slices.Clone(at.children), slices.Clone(at.layers)
	at.children[i], at.layers[i] = child{own, l}, l
	if was.parent == &at.Base {
		was.name, was.parent = "", nil
	}
	return old
}

// find returns the Sequential that has the layer with a name, and its index; nil if there is none.
func (s *Sequential) find(name string) (*Sequential, int) {
	for i, l := range s.layers {
		own := l.node().name
		if own == name {
			return s, i
		}
		if nested, ok := l.(*Sequential); ok {
			if rest, inside := strings.CutPrefix(name, own+"."); inside {
				if at, i := nested.find(rest); at != nil {
					return at, i
				}
			}
		}
	}
	return nil, 0
}

// Slice makes a Sequential of the children from <= i < to, under their names. They stay children of
// s, so freeing, freezing or replacing their parameters affects both. Layers may be added to the
// slice, such as another head.
func (s *Sequential) Slice(from, to int) *Sequential {
	return &Sequential{Base: Base{children: slices.Clone(s.children[from:to])},
		layers: slices.Clone(s.layers[from:to])}
}

func (s *Sequential) Len() int { return len(s.layers) }

// Forward runs the layers in order, from one tensor to one. Each activation is freed as soon as the
// next one exists, unless autograd keeps it.
func (s *Sequential) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	return onlyTensor(s, s.ForwardTuple(c, []*torch.Tensor{x}))
}

// ForwardTuple is Forward for tuples. The outermost Sequential of a model holds the skip
// connections. If they do not match, it panics with a *torch.Error that has the error of
// VerifySkips.
func (s *Sequential) ForwardTuple(c *Ctx, xs []*torch.Tensor) []*torch.Tensor {
	if c.Skips != nil {
		return c.runAll(xs, s.layers...)
	}
	routes, err := s.SkipRoutes()
	if err != nil {
		panic(&torch.Error{Op: "Forward", Device: c.Device(), Err: err})
	}
	c.Skips = new(SkipStore).Begin(routes, 0, len(s.Layers()))
	defer func() {
		c.Skips.Free() // empty, unless a layer panicked
		c.Skips = nil
	}()
	return c.runAll(xs, s.layers...)
}

func (s *Sequential) OverwritesInput() bool {
	return len(s.layers) > 0 && overwrites(s.layers[0])
}

// NamedLayer is a layer with its full dotted name in the model.
type NamedLayer struct {
	Name string
	Layer
}

// Layers lists the layers of s with nested Sequentials flattened. Balances count these.
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
			out = append(out, NamedLayer{join(name, n.Name), n.Layer})
		}
	}
	return out
}

// State lists a layer's parameters and buffers with their full names in the model.
func (l NamedLayer) State() []NamedParam {
	out := State(l.Layer)
	for i := range out {
		out[i].Name = join(l.Name, out[i].Name)
	}
	return out
}
