package autoremat

import (
	"fmt"

	"penstock.example/internal/arg"
	"penstock.example/nn"
	"penstock.example/planner"
	"penstock.example/torch"
)

// memoryError is a *planner.MemoryError for errors.As, and torch.ErrOutOfMemory for errors.Is. The
// module is its only stage.
type memoryError struct {
	*planner.MemoryError
	inputs    string // types and shapes of the batch
	others    int64  // the part of the least that no plan changes
	estimated bool   // the loss is not known yet
}

// shortage is the error of a limit below what a step needs at least.
func (m *Module) shortage(s *instance, least, others int64, setBy string) error {
	short := planner.Shortage{Device: m.limit.device.String(), Limit: m.limit.inForce(), Least: least, SetBy: setBy}
	return memoryError{&planner.MemoryError{Stages: []planner.Shortage{short}}, s.key, others, s.loss == nil}
}

// Error says what the limit should be.
func (e memoryError) Error() string {
	about := ""
	if e.estimated {
		about = ", with a loss that is not known yet,"
	}
	s := e.Stages[0]
	return fmt.Sprintf("autoremat: a limit of %d bytes is too low for a batch of %s: %d are needed%s at least, by %s; "+
		"%d of them are there before (parameters, optimizer state, the batch, and what else is live); "+
		"set the limit to %d or more, or take smaller batches",
		s.Limit, e.inputs, s.Least, about, s.SetBy, e.others, s.Least)
}

func (e memoryError) Unwrap() error        { return e.MemoryError }
func (e memoryError) Is(target error) bool { return target == torch.ErrOutOfMemory }

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

// Run is ForwardTuple that returns its failures: a *planner.MemoryError, or an *Error that names the layer.
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
