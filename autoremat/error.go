package autoremat

import (
	"fmt"

	"penstock/internal/arg"
	"penstock/nn"
	"penstock/torch"
)

// LimitError says that no plan stays under the limit. errors.Is(err, torch.ErrOutOfMemory) holds.
// All sizes are bytes.
type LimitError struct {
	Inputs string // types and shapes of the batch
	Limit  int64  // the limit in force
	// Least is the lowest limit with which training works. SetBy names what needs that much, and
	// Layer the layer, where it is one.
	Least int64
	SetBy string
	Layer string
	// Others is the part of Least that no plan changes: parameters, the batch, whatever else is
	// live, and the optimizer's state.
	Others int64
	// LossKnown says whether the loss in Least was measured; if not, it is an estimate.
	LossKnown bool
}

// Error says what the limit should be.
func (e *LimitError) Error() string {
	about := ""
	if !e.LossKnown {
		about = ", with a loss that is not known yet,"
	}
	return fmt.Sprintf("autoremat: a limit of %d bytes is too low for a batch of %s: %d are needed%s at least, by %s; "+
		"%d of them are there before (parameters, optimizer state, the batch, and what else is live); "+
		"set the limit to %d or more, or take smaller batches",
		e.Limit, e.Inputs, e.Least, about, e.SetBy, e.Others, e.Least)
}

// Is makes errors.Is(err, torch.ErrOutOfMemory) hold.
func (e *LimitError) Is(target error) bool { return target == torch.ErrOutOfMemory }

// Error is the failure of a layer or of the loss, in Run or Backward.
type Error struct {
	Layer string // full dotted name; "" if none was running
	Err   error  // *torch.Error or *torch.PanicError
}

// Error names the layer and the cause.
func (e *Error) Error() string {
	s := "autoremat: "
	if e.Layer != "" {
		s += fmt.Sprintf("layer %q: ", e.Layer)
	}
	return s + e.Err.Error()
}

// Unwrap is the cause.
func (e *Error) Unwrap() error { return e.Err }

// attempt runs f and returns its panic as an error with the path of c.
func attempt(c *nn.Ctx, f func()) (err error) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		err = &Error{Layer: c.Path(), Err: torch.Caught(p)}
		if own, ok := p.(*torch.Error); ok && own.Op == "autoremat" && own.Err != nil {
			err = own.Err
		}
	}()
	f()
	return nil
}

// Run is ForwardTuple that returns its failures: a *LimitError, or an *Error that names the layer.
// The results belong to c.
func (m *Module) Run(c *nn.Ctx, xs ...*torch.Tensor) (ys []*torch.Tensor, err error) {
	if err := arg.Given(c, "autoremat: Run: the nn.Ctx", "one of nn.NewCtx"); err != nil {
		return nil, err
	}
	err = attempt(c, func() { ys = m.ForwardTuple(c, xs) })
	return ys, err
}

// Backward runs backward from outputs, such as the loss, as torch.Ctx.Backward does. grads has one
// gradient for each output. A nil grads stands for ones, and then the outputs must be scalars. A
// failure is returned as an *Error that names the layer. It blocks until backward is over.
func (m *Module) Backward(c *nn.Ctx, outputs, grads []*torch.Tensor) error {
	if err := arg.Given(c, "autoremat: Backward: the nn.Ctx", "the one of the forward"); err != nil {
		return err
	}
	if grads == nil {
		grads = make([]*torch.Tensor, len(outputs))
	}
	return attempt(c, func() { c.Ctx.Backward(outputs, grads, false) })
}
