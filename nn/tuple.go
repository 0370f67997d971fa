package nn

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"penstock.example/torch"
)

// Tuple makes a Layer of a function from tensors to tensors, of any types. The rules of
// Layer.Forward hold for it. It may return elements of xs, but not xs itself. Names, parameters,
// children and skips are m's. forward is usually a method of m:
//
//	func NewFork(n int64) nn.Layer {
//		l := &fork{linear: nn.NewLinear(n, n)}
//		l.Child("linear", l.linear)
//		return nn.Tuple(l, l.forward)
//	}
func Tuple(m Module, forward func(c *Ctx, xs []*torch.Tensor) []*torch.Tensor) Layer {
	return &tuple{m, forward}
}

// tupleRunner is a module that runs on tuples: a Tuple, a Sequential, or a wrapper of these.
type tupleRunner interface {
	ForwardTuple(c *Ctx, xs []*torch.Tensor) []*torch.Tensor
}

type tuple struct {
	Module
	forward func(c *Ctx, xs []*torch.Tensor) []*torch.Tensor
}

func (t *tuple) ForwardTuple(c *Ctx, xs []*torch.Tensor) []*torch.Tensor { return t.forward(c, xs) }

func (t *tuple) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	return onlyTensor(t, t.forward(c, []*torch.Tensor{x}))
}

func (t *tuple) OverwritesInput() bool { return overwrites(t.Module) }

// InPlace is implemented by layers that overwrite their input. Such a layer gets a copy if a pipe,
// a skip connection or the backward of an earlier layer still needs the input. The backward of a
// layer of your own is assumed to need the layer's output, unless a method KeepsOutput() bool
// returns false.
type InPlace interface {
	// OverwritesInput reports whether Forward changes x.
	OverwritesInput() bool
}

func overwrites(m Module) bool {
	f, ok := m.(InPlace)
	return ok && f.OverwritesInput()
}

// keepsOutput reports whether the backward of a layer may need the layer's output, as Tanh's does.
func keepsOutput(m Module) bool {
	switch l := m.(type) {
	case interface{ KeepsOutput() bool }:
		return l.KeepsOutput()
	case *operatorLayer:
		return l.inPlace || slices.Contains([]string{"penstock::relu", "aten::tanh", "aten::sigmoid",
			"aten::softmax.int", "aten::log_softmax.int"}, l.operator)
	case *Linear, *conv, *BatchNorm, *norm, *rmsNorm, *Embedding, *adaptiveAvgPool2d, *dropout,
		*dropout2d, *identity, *stash, *addSkip, *Sequential:
		return false
	}
	return true
}

func (c *Ctx) apply(l Layer, xs []*torch.Tensor) []*torch.Tensor {
	if t, ok := l.(tupleRunner); ok {
		return t.ForwardTuple(c, xs)
	}
	if len(xs) != 1 {
		c.fail("Forward", xs, "the layer takes one tensor and was given a tuple of %d; make it with nn.Tuple",
			len(xs))
	}
	return []*torch.Tensor{l.Forward(c, xs[0])}
}

// onlyTensor returns the only tensor of m's output.
func onlyTensor(m Module, ys []*torch.Tensor) *torch.Tensor {
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

// checkOutputs refuses an output that is empty or contains nil or a freed tensor.
func (c *Ctx) checkOutputs(xs, ys []*torch.Tensor) {
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
