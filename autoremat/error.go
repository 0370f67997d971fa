package autoremat

import (
	"fmt"

	"penstock/internal/arg"
	"penstock/nn"
	"penstock/torch"
)

// LimitError says that no plan stays under the limit. errors.Is(err, torch.ErrOutOfMemory) holds.
type LimitError struct {
	Inputs string // the batch
	Limit  int64  // in force
	// Least is the lowest limit with which training works, SetBy what takes so much, and Layer the layer, if it is one.
	Least int64
	SetBy string
	Layer string
	// Others is what of Least is there before: parameters, the batch, and all else that is live, with the optimizer's state.
	Others int64
	// LossKnown says that the loss is part of Least as it was measured; else it is estimated.
	LossKnown bool
}

// Error says what the limit should be.
func (e *LimitError) Error() string {
	about := ""
	if !e.LossKnown {
		about = ", with a loss that is not known yet,"
	}
	return fmt.Sprintf("autoremat: a limit of %d bytes is too low for a batch of %s: %d are needed%s at least, by %s; %d of them are there before (parameters, optimizer state, the batch, and what else is live); set the limit to %d or more, or take smaller batches",
		e.Limit, e.Inputs, e.Least, about, e.SetBy, e.Others, e.Least)
}

// Is makes errors.Is(err, torch.ErrOutOfMemory) hold.
func (e *LimitError) Is(target error) bool { return target == torch.ErrOutOfMemory }

// Error is the failure of a layer, or of the loss, in Run or Backward.
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

// attempt runs f and makes its panic an error with the path of c.
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

// Run is ForwardTuple whose failures are errors: a *LimitError, or an *Error with the layer.
func (m *Module) Run(c *nn.Ctx, xs ...*torch.Tensor) (ys []*torch.Tensor, err error) {
	if err := arg.Given(c, "autoremat: Run: the nn.Ctx", "one of nn.NewCtx"); err != nil {
		return nil, err
	}
	err = attempt(c, func() { ys = m.ForwardTuple(c, xs) })
	return ys, err
}

// Backward goes back from outputs, such as the loss, as torch.Ctx.Backward does; a failure is an *Error with the layer. nil for grads is ones, for numbers.
func (m *Module) Backward(c *nn.Ctx, outputs, grads []*torch.Tensor) error {
	if err := arg.Given(c, "autoremat: Backward: the nn.Ctx", "the one of the forward"); err != nil {
		return err
	}
	if grads == nil {
		grads = make([]*torch.Tensor, len(outputs))
	}
	return attempt(c, func() { c.Ctx.Backward(outputs, grads, false) })
}
