package autoremat

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"penstock.example/internal/arg"
	"penstock.example/nn"
	"penstock.example/torch"
)

// ErrClosed is the failure of training with a closed module.
var ErrClosed = errors.New("the module is closed")

// Module is a model that trains under a limit of bytes. It is an nn.Layer of one tensor or of a
// tuple, with the names and parameters of the model, and may be a layer of another model. Where no
// gradients are recorded, as in evaluation, and where nothing wants a gradient, it only runs the
// model.
//
// Forwards may overlap, each with its own nn.Ctx, as the model's own could; the prediction is then
// of each by itself. No forward may begin while a backward adds to the model's gradients on another
// goroutine, as it reads which gradients are present. All other methods but Measure are safe for
// concurrent use.
//
// Parts of the model may be frozen, unfrozen or set to evaluation (nn.Freeze, nn.Eval) between steps.
// The next forward measures anew; plans that were set are forgotten.
//
// The model is an nn.Sequential; nested ones are flattened. Its parameters must exist before it
// trains. A layer that works in place on the module's input is given a copy. Where a parameter is
// also used outside of the model, its gradient sums the model's uses first, as with
// nn.Checkpointed.
//
// A forward or backward that fails restores the model's buffers, such as running statistics, to
// what they were when it began. A forward that has returned has changed them, whether or not its
// backward succeeds. Where forwards overlap, one that fails also undoes changes of the others since
// it began.
type Module struct {
	nn.Layer // the model

	model  *nn.Sequential
	config Config
	layers []nn.NamedLayer
	routes []nn.SkipRoute
	shared []*nn.Param // used outside of the model as well

	mu        sync.Mutex
	closed    bool
	limit     accountLimit
	modes     *nn.Modes // that the instances were measured in
	instances map[string]*instance
	latest    *instance
	steps     int          // backwards so far
	observed  *observation // measures the latest forward's step
	last      int64        // predicted peak of the latest forward's step, bytes
}

// New makes a module of a model. The caller must Close the module. The model stays the caller's,
// and must outlive the module.
func New(model *nn.Sequential, config Config) (*Module, error) {
	if err := arg.Given(model, "autoremat: the model", "an nn.Sequential"); err != nil {
		return nil, err
	}
	if err := config.check(); err != nil {
		return nil, err
	}
	m := &Module{Layer: model, model: model, config: config, layers: model.Layers(), modes: nn.ModesOf(model), instances: map[string]*instance{}}
	if len(m.layers) == 0 {
		return nil, errors.New("autoremat: the model has no layers")
	}
	var err error
	if m.routes, err = model.SkipRoutes(); err != nil {
		return nil, fmt.Errorf("autoremat: a module has both ends of its skip connections: %w", err)
	}
	return m, nil
}

// Forward runs the model on one tensor, as a layer does. The result belongs to c. It fails as
// ForwardTuple does.
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

// ForwardTuple runs the model on a tuple. The results belong to c.
//
// It panics with a *torch.Error where no plan can be made. Its Err is then a *planner.MemoryError, a
// *profile.Error, or says what else is wrong. If it panics, the model's buffers are restored.
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

// orRestore runs a part of a forward or backward, and restores the model's buffers if it fails.
func (m *Module) orRestore(c *nn.Ctx, f func()) {
	arg.Must(c, "autoremat: Forward: the nn.Ctx", "one of nn.NewCtx")
	if !c.Training {
		f()
		return
	}
	nn.OrRestore(m.model, f)
}

// OverwritesInput is false: the module copies an input that the model would overwrite.
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

// begin prepares a forward: it measures a new kind of batch, chooses the plan and makes the job.
func (m *Module) begin(c *nn.Ctx, xs []*torch.Tensor) (*job, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stopObserving()
	s, err := m.measured(context.Background(), c, Sample{Input: xs})
	if err != nil {
		return nil, err
	}
	forecast, err := m.choose(context.Background(), s)
	if err != nil {
		return nil, err
	}
	layers := len(s.chain.Layers)
	j := &job{
		m: m, s: s, ops: s.ops, chain: layers, output: outputOf(s.ops, layers),
		present: s.present, missingBytes: s.missingBytes, from: s.base, beyond: m.shared,
	}
	j.costs = s.chainFor(s.present, s.missingBytes, j.output)
	s.latest = j
	m.last = forecast.peak()
	if !s.observed[j.kind()] {
		j.observed = &observation{device: c.Device()}
		m.observed = j.observed
	}
	return j, nil
}

// Close ends the module and restores the limit that the device had before. It is idempotent.
// Backwards of earlier forwards may still run.
func (m *Module) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stopObserving()
	m.limit.restore()
	m.closed = true
}

// Predicted returns the peak of live bytes on the device during the step whose forward ran last.
// The step ends with backward, or with the update where the optimizer is known.
func (m *Module) Predicted() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last
}
