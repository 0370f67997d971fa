package autoremat

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"penstock/internal/arg"
	"penstock/nn"
	"penstock/torch"
)

// ErrClosed is what training with a closed module fails with.
var ErrClosed = errors.New("the module is closed")

// Module is a model that trains under a limit. It is an nn.Layer of one tensor or of a tuple, with the names and parameters of the model, and may be a layer of another one. Where gradients are not
// recorded, in evaluation, and where nothing wants a gradient it is the model and no more.
//
// Forwards may overlap, each with its own nn.Ctx, as the model's own could; the prediction is then of each by itself. While a backward adds to the model's gradients no forward may begin elsewhere: it looks
// which gradients are there. All other methods but Measure may be called at any time.
//
// The model is an nn.Sequential, nested ones are flattened. Its parameters must exist before it trains. A layer that works in place on the module's input is given a copy. Where others use a parameter
// of the model as well the sum of its gradients groups the module's uses first, as with nn.Checkpointed.
//
// A forward that fails, and a backward, leaves the model's buffers as they were when it began, running statistics and others; a forward that has returned has moved them, whatever becomes of its backward. Where
// forwards overlap, one that fails takes back what the others have moved meanwhile.
type Module struct {
	nn.Layer // the model

	model  *nn.Sequential
	config Config
	layers []nn.NamedLayer
	routes []nn.SkipRoute
	shared []*nn.Param // used outside as well

	mu     sync.Mutex
	closed bool
	bounds bounds
	cases  map[string]*instance
	latest *instance
	steps  int     // backwards so far
	lesson *lesson // that is being learnt
	last   int64   // prediction of the latest forward
}

// New makes a module of a model. The caller must Close it; the model stays the caller's.
func New(model *nn.Sequential, config Config) (*Module, error) {
	if err := arg.Given(model, "autoremat: the model", "an nn.Sequential"); err != nil {
		return nil, err
	}
	if err := config.check(); err != nil {
		return nil, err
	}
	m := &Module{Layer: model, model: model, config: config, layers: model.Layers(), cases: map[string]*instance{}}
	if len(m.layers) == 0 {
		return nil, errors.New("autoremat: the model has no layers")
	}
	var err error
	if m.routes, err = model.SkipRoutes(); err != nil {
		return nil, fmt.Errorf("autoremat: a module has both ends of its skip connections: %w", err)
	}
	return m, nil
}

// Forward runs the model on one tensor, as a layer does. It fails as ForwardTuple does.
func (m *Module) Forward(c *nn.Ctx, x *torch.Tensor) (y *torch.Tensor) {
	m.orRestore(c, func() {
		ys := m.forward(c, []*torch.Tensor{x})
		if len(ys) != 1 {
			panic(&torch.Error{Op: "Forward", Args: torch.Describe(ys), Device: c.Device(),
				Message: fmt.Sprintf("the model gives a tuple of %d where one tensor is wanted; run it with ForwardTuple", len(ys))})
		}
		y = ys[0]
	})
	return y
}

// ForwardTuple runs the model on a tuple. What cannot be planned panics with a *torch.Error: its Err is a *LimitError, a *profile.Error or says what else is wrong. If it panics the model's buffers are as before.
func (m *Module) ForwardTuple(c *nn.Ctx, xs []*torch.Tensor) (ys []*torch.Tensor) {
	m.orRestore(c, func() { ys = m.forward(c, xs) })
	return ys
}

func (m *Module) forward(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
	if m.trains(c, xs) {
		return m.train(c, xs)
	}
	return m.model.ForwardTuple(c, xs)
}

// orRestore runs a part of a forward or of a backward, and if that fails puts back what it has moved.
func (m *Module) orRestore(c *nn.Ctx, f func()) {
	arg.Must(c, "autoremat: Forward: the nn.Ctx", "one of nn.NewCtx")
	if !c.Training {
		f()
		return
	}
	nn.OrRestore(m.model, f)
}

// OverwritesInput is false, whatever the model does.
func (m *Module) OverwritesInput() bool { return false }

// trains says whether a backward may follow.
func (m *Module) trains(c *nn.Ctx, xs []*torch.Tensor) bool {
	wants := func(x *torch.Tensor) bool { return x != nil && x.RequiresGrad() }
	return c.Training && c.Grad() && (len(nn.Params(m.model)) > 0 || slices.ContainsFunc(xs, wants))
}

func (m *Module) train(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
	job, err := m.begin(c, xs)
	if err != nil {
		panic(&torch.Error{Op: "autoremat", Args: torch.Describe(xs), Device: c.Device(), Err: err})
	}
	return job.forward(c, xs)
}

// begin finds out how this forward is to run.
func (m *Module) begin(c *nn.Ctx, xs []*torch.Tensor) (*job, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forgetLesson()
	s, err := m.measured(context.Background(), c, Sample{Input: xs})
	if err != nil {
		return nil, err
	}
	forecast, err := m.choose(context.Background(), s)
	if err != nil {
		return nil, err
	}
	j := &job{m: m, s: s, ops: s.ops, chain: len(s.chain.Layers), output: outputOf(s.ops, len(s.chain.Layers)), present: s.present, lacks: s.lacks, from: s.base, beyond: m.shared}
	j.terms = s.chainFor(s.present, s.lacks, j.output)
	s.latest = j
	m.last = forecast.most()
	if !s.taught[j.about()] {
		j.lesson = &lesson{device: c.Device()}
		m.lesson = j.lesson
	}
	return j, nil
}

// Close ends the module and gives the device the limit that it had before. It is idempotent. Backwards that are still to come are run.
func (m *Module) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forgetLesson()
	m.bounds.restore()
	m.closed = true
}

// Predicted is the most bytes that will be live on the device during the step whose forward ran last: to the end of backward, and of the update where the optimizer is known.
func (m *Module) Predicted() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last
}
