package pipe

import (
	"errors"
	"fmt"

	"penstock/nn"
	"penstock/torch"
)

// Batch is a mini-batch. Its tensors belong to the caller, who keeps them until the call returns; inputs are best made on the first device and targets on the last.
type Batch struct {
	Input   *torch.Tensor // [rows, ...], at least one row to train on; if it requires a gradient, a leaf, which gets it
	Inputs  []Value       // in place of Input: a tuple, of any types
	Target  *torch.Tensor // [rows, ...]; Step only
	Targets []Value       // in place of Target: a tuple, for a loss of tuples
	Step    int64         // seeds the step's randomness together with Config.Seed
	Extras  []nn.Extra    // what is no tensor; every layer sees it on every micro-batch
}

// Value is an element of a tuple.
type Value struct {
	tensor *torch.Tensor
	whole  bool
}

// Rows is a tensor [rows, ...] that is split into micro-batches. All such tensors of a batch have the same rows.
func Rows(t *torch.Tensor) Value { return Value{tensor: t} }

// NoChunk is a tensor of any shape that every micro-batch gets whole.
func NoChunk(t *torch.Tensor) Value { return Value{tensor: t, whole: true} }

// values are the inputs or the targets, however they were given.
func values(what string, one *torch.Tensor, tuple []Value) ([]Value, error) {
	switch {
	case one != nil && tuple != nil:
		return nil, fmt.Errorf("pipe: the batch has both %s and %ss; set one of them", what, what)
	case one != nil:
		return []Value{Rows(one)}, nil
	}
	return tuple, nil
}

// countRows is the number of rows that all values have that are split.
func countRows(what string, list []Value) (int64, error) {
	rows, first := int64(-1), 0
	for i, v := range list {
		if err := v.check(fmt.Sprintf("%s %d", what, i)); err != nil {
			return 0, err
		}
		if v.whole {
			continue
		}
		shape := v.tensor.Shape()
		switch {
		case len(shape) == 0:
			return 0, fmt.Errorf("pipe: %s %d is %v, which has no rows to split into micro-batches; give every row its value, or wrap it in pipe.NoChunk", what, i, v.tensor)
		case rows < 0:
			rows, first = shape[0], i
		case rows != shape[0]:
			return 0, fmt.Errorf("pipe: %s %d has %d rows and %s %d has %d; all must have the same, except what is wrapped in pipe.NoChunk", what, first, rows, what, i, shape[0])
		}
	}
	if rows < 0 {
		return 0, fmt.Errorf("pipe: no %s has rows to split into micro-batches; at least one must not be wrapped in pipe.NoChunk", what)
	}
	return rows, nil
}

func (v Value) check(name string) error {
	switch {
	case v.tensor == nil:
		return fmt.Errorf("pipe: %s is nil; want a tensor", name)
	case v.tensor.Freed():
		return fmt.Errorf("pipe: %s was freed; keep the batch's tensors until the call returns", name)
	case !v.tensor.IsLeaf():
		return fmt.Errorf("pipe: %s hangs on a graph, which one backward for each micro-batch cannot go through; detach it, and go on from its gradient", name)
	}
	return nil
}

// placed refuses values on another kind of device than the stage that reads them.
func placed(what string, list []Value, which string, stage *Stage) error {
	for i, v := range list {
		if d := v.tensor.Kind(); d != stage.Device.Kind {
			return fmt.Errorf("pipe: %s %d is on %v and the %s stage on %v; make it there", what, i, d, which, stage.Device)
		}
	}
	return nil
}

// requiresGrad says whether any of the values wants a gradient.
func requiresGrad(list []Value) bool {
	for _, v := range list {
		if v.tensor.RequiresGrad() {
			return true
		}
	}
	return false
}

var errNoInput = errors.New("pipe: the batch has no input; set Input, or Inputs for a tuple")

// part is a micro-batch's part of a value: a view of its rows, or the whole.
func (r rows) part(c *torch.Ctx, v Value) *torch.Tensor {
	if v.whole {
		return c.Share(v.tensor)
	}
	return c.Narrow(v.tensor, 0, r.start, r.length)
}
