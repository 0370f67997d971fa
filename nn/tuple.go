package nn

import (
	"fmt"
	"strconv"
	"strings"

	"penstock/internal/arg"
	"penstock/torch"
)

// TupleLayer is a layer that turns tensors into tensors, of any types. All that is said of Layer holds for it. A Sequential runs a module by ForwardTuple where it has one.
type TupleLayer interface {
	Module
	// ForwardTuple takes what the layer before gave. It may return an element of xs, but not xs itself.
	ForwardTuple(c *Ctx, xs []*torch.Tensor) []*torch.Tensor
}

// Tuple is a TupleLayer as a Layer, to be added to a Sequential. Names and parameters are those of l.
func Tuple(l TupleLayer) Layer {
	arg.Must(l, "nn: Tuple: the layer", "an nn.TupleLayer")
	return tuple{l}
}

type tuple struct{ TupleLayer }

// Forward is for a layer of one tensor to one tensor.
func (t tuple) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	return single(t, t.ForwardTuple(c, []*torch.Tensor{x}))
}

// OverwritesInput says whether the wrapped layer does.
func (t tuple) OverwritesInput() bool { return overwrites(t.TupleLayer) }

// InPlace is implemented by layers that overwrite their input. Such a layer is given a copy where the input is still needed: by a pipe, or as a skip connection.
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
	if t, ok := l.(TupleLayer); ok {
		return t.ForwardTuple(c, xs)
	}
	if len(xs) != 1 {
		panic(&torch.Error{Op: "Forward", Args: torch.Describe(xs), Device: c.Device(),
			Message: fmt.Sprintf("the layer takes one tensor and was given a tuple of %d; let it be an nn.TupleLayer", len(xs))})
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
			Message: fmt.Sprintf("%s gives a tuple of %d where one tensor is wanted; run it with ForwardTuple or RunTuple", who, len(ys))})
	}
	return ys[0]
}

// exist refuses a layer's output that has nothing, or something that is gone, in it.
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
		panic(&torch.Error{Op: "Forward", Args: torch.Describe(xs), Device: c.Device(), Message: "the layer must return tensors that exist; it returned " + fault})
	}
}
