package nn

import (
	"fmt"
	"strconv"
	"strings"

	"penstock.example/torch"
)

// Tuple makes a Layer of a function that turns tensors into tensors, of any types. All that is said
// of Layer.Forward holds for it: it takes the previous layer's output, and may return an element of
// xs, but not xs itself. Names, parameters, children and skips are m's, and forward is
// usually its method:
//
//	func NewFork(n int64) nn.Layer {
//		l := &fork{linear: nn.NewLinear(n, n)}
//		l.Child("linear", l.linear)
//		return nn.Tuple(l, l.forward)
//	}
func Tuple(m Module, forward func(c *Ctx, xs []*torch.Tensor) []*torch.Tensor) Layer {
	return &tuple{m, forward}
}

// ofTuples is a module that runs on tuples: what Tuple makes, a Sequential, and wrappers of such
// layers.
type ofTuples interface {
	ForwardTuple(c *Ctx, xs []*torch.Tensor) []*torch.Tensor
}

type tuple struct {
	Module
	forward func(c *Ctx, xs []*torch.Tensor) []*torch.Tensor
}

func (t *tuple) ForwardTuple(c *Ctx, xs []*torch.Tensor) []*torch.Tensor { return t.forward(c, xs) }

// Forward is for a layer of one tensor to one tensor.
func (t *tuple) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	return single(t, t.forward(c, []*torch.Tensor{x}))
}

func (t *tuple) OverwritesInput() bool { return overwrites(t.Module) }

// InPlace is implemented by layers that overwrite their input. Such a layer is given a copy where
// the input is still needed: by a pipe, or as a skip connection.
type InPlace interface {
	// OverwritesInput says that Forward changes x.
	OverwritesInput() bool
}

func overwrites(m Module) bool {
	f, ok := m.(InPlace)
	return ok && f.OverwritesInput()
}

// apply runs a layer by whichever forward it has.
func (c *Ctx) apply(l Layer, xs []*torch.Tensor) []*torch.Tensor {
	if t, ok := l.(ofTuples); ok {
		return t.ForwardTuple(c, xs)
	}
	if len(xs) != 1 {
		c.fail("Forward", xs, "the layer takes one tensor and was given a tuple of %d; make it with "+
			"nn.Tuple", len(xs))
	}
	return []*torch.Tensor{l.Forward(c, xs[0])}
}

// single is the only tensor of a tuple.
func single(m Module, ys []*torch.Tensor) *torch.Tensor {
	if len(ys) != 1 {
		who := "the model"
		if name := m.node().name; name != "" {
			who = strconv.Quote(name)
		}
		panic(&torch.Error{Op: "Forward", Args: torch.Describe(ys),
			Message: fmt.Sprintf("%s gives a tuple of %d where one tensor is wanted; "+
				"run it with ForwardTuple or RunNamed", who, len(ys))})
	}
	return ys[0]
}

// exist refuses a layer's output that is empty, or that has nil or a freed tensor in it.
func (c *Ctx) exist(xs, ys []*torch.Tensor) {
	fault := ""
	if len(ys) == 0 {
		fault = "an empty tuple"
	}
	for _, y := range ys {
		if y == nil || y.Freed() {
			fault = strings.Join(torch.Describe(ys), ", ")
		}
	}
	if fault != "" {
		c.fail("Forward", xs, "the layer must return tensors that exist; it returned %s", fault)
	}
}
