package nn

import (
	"strconv"

	"penstock/internal/arg"
	"penstock/torch"
)

// Sequential runs layers one after the other. A pipe cuts a Sequential into stages.
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

// Add appends a layer under a name and returns s. With an empty name it has that of s.
func (s *Sequential) Add(name string, l Layer) *Sequential {
	s.Child(name, l)
	s.layers = append(s.layers, l)
	return s
}

// Len is the number of children.
func (s *Sequential) Len() int { return len(s.layers) }

// Forward runs the layers in order on one tensor, and gives one. Each activation is freed as soon
// as the next one exists, unless autograd keeps it.
func (s *Sequential) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	return single(s, s.ForwardTuple(c, []*torch.Tensor{x}))
}

// ForwardTuple runs the layers in order. The outermost Sequential of a model holds the model's skip
// connections. If they do not match it fails as an operator does, with the error of VerifySkips.
func (s *Sequential) ForwardTuple(c *Ctx, xs []*torch.Tensor) []*torch.Tensor {
	arg.Must(c, "nn: Forward: the nn.Ctx", "one of nn.NewCtx")
	if c.skips != nil {
		return c.runAll(xs, s.layers...)
	}
	routes, err := s.SkipRoutes()
	if err != nil {
		panic(&torch.Error{Op: "Forward", Device: c.Device(), Err: err})
	}
	c.skips = NewSkipStore(routes, 0, len(s.Layers()))
	defer func() {
		c.skips.Free() // empty, unless a layer panicked
		c.skips = nil
	}()
	return c.runAll(xs, s.layers...)
}

// OverwritesInput reports whether the first layer does.
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

// Layers lists the layers of s with nested Sequentials flattened. Balances count these. Names do
// not depend on how the model is cut.
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
