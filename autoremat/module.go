package autoremat

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"penstock.example/internal/arg"
	"penstock.example/internal/engine"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/plan"
	"penstock.example/torch"
)

// Config configures a [Module]. The zero value limits the module to the memory that is free when it
// first trains, and assumes no optimizer.
type Config struct {
	// Limit is the most bytes that may be live on the device. 0 is the limit of the device's
	// account when the module first trains. If the account has none, 0 is the live bytes and nine
	// tenths of the available bytes.
	Limit int64
	// Optimizer will update the model. The plan leaves memory for its state and its update. It
	// stays the caller's. Nil is none.
	Optimizer optim.Optimizer
}

// ErrClosed is the failure of training with a closed module.
var ErrClosed = errors.New("the module is closed")

// Module is a model that trains under a limit of bytes. It is an nn.Layer of one tensor or of a
// tuple, with the names and parameters of the model, and may be a layer of another model. In
// evaluation, and if nothing needs a gradient, it only runs the model.
//
// Forwards may overlap, each with its own nn.Ctx, and take turns on the module's worker. No forward
// may begin while a backward adds to the model's gradients on another goroutine. All other methods
// are safe for concurrent use.
//
// Parts of the model may be frozen, unfrozen or set to evaluation (nn.Freeze, nn.Eval) between
// steps. The next forward measures anew.
//
// The model's parameters must exist before it trains. If a parameter is also used outside of the
// model, its gradient sums the model's uses first, as with nn.Checkpointed.
//
// A forward or backward that fails restores the model's buffers, such as running statistics, to the
// values from before the call.
type Module struct {
	nn.Layer // the model

	model  *nn.Sequential
	config Config

	mu      sync.Mutex
	closed  bool
	device  torch.Device
	release func() // ends the limit of the device's account; nil before the first forward
	pipes   map[settings]*pipe.Pipe
	plan    *plan.Plan // of the latest forward

	lossBytes map[string]int64 // without the output, by kind of batch
	measured  *node            // the latest forward, if its loss is being measured
}

// settings of a context, one pipe each.
type settings struct {
	threads  int
	autocast torch.Autocast
}

// New makes a module of a model. The caller must Close the module. The model stays the caller's,
// and must outlive the module.
func New(model *nn.Sequential, config Config) (*Module, error) {
	if config.Limit < 0 {
		return nil, &arg.ConfigError{Of: "autoremat", Field: "Limit", Value: config.Limit,
			Remedy: "want a number of bytes, or 0 for what is free"}
	}
	if len(model.Layers()) == 0 {
		return nil, errors.New("autoremat: the model has no layers")
	}
	if _, err := model.SkipRoutes(); err != nil {
		return nil, fmt.Errorf("autoremat: a module has both ends of its skip connections: %w", err)
	}
	return &Module{Layer: model, model: model, config: config, pipes: map[settings]*pipe.Pipe{},
		lossBytes: map[string]int64{}}, nil
}

// Forward is ForwardTuple with one tensor.
func (m *Module) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	return nn.Tuple(m.model, m.ForwardTuple).Forward(c, x)
}

// ForwardTuple runs the model on a tuple. The results belong to c. It panics as the model's layers
// do, and with a *torch.Error if there is no plan, for example because of a *plan.MemoryError.
func (m *Module) ForwardTuple(c *nn.Ctx, xs []*torch.Tensor) (ys []*torch.Tensor) {
	wants := func(x *torch.Tensor) bool { return x != nil && x.RequiresGrad() }
	switch {
	case !c.Training:
		return m.model.ForwardTuple(c, xs)
	case !c.Grad() || len(nn.Params(m.model)) == 0 && !slices.ContainsFunc(xs, wants):
		nn.OrRestore(m.model, func() { ys = m.model.ForwardTuple(c, xs) })
		return ys
	}
	return m.train(c, xs)
}

// planFor makes the plan for a batch of one kind, and sets the batch's LossBytes.
func (m *Module) planFor(c *nn.Ctx, kind string, b *pipe.Batch) (*pipe.Pipe, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.endMeasurement()
	p, err := m.pipeFor(c)
	if err != nil {
		return nil, err
	}
	device, before := m.device, m.device.Memory()
	b.LossBytes = m.lossBytes[kind]
	made, err := p.PlanFor(context.Background(), *b, nil)
	device.ResetPeak()
	engine.RaisePeak(device, before.Peak) // measuring is not part of a step
	var short *plan.MemoryError
	if errors.As(err, &short) && b.LossBytes == 0 { // the loss may take less than is assumed
		b.LossBytes = 1
		if tight, failed := p.PlanFor(context.Background(), *b, nil); failed == nil {
			made, err = tight, nil
		}
	}
	if err != nil && short != nil {
		err = fmt.Errorf("autoremat: use a limit of at least %d bytes, or smaller batches: %w",
			short.Least(), err)
	}
	if err == nil {
		m.plan = made
	}
	return p, err
}

// pipeFor returns the pipe with the settings of a context.
func (m *Module) pipeFor(c *nn.Ctx) (*pipe.Pipe, error) {
	if m.closed {
		return nil, fmt.Errorf("autoremat: %w", ErrClosed)
	}
	if err := m.bind(c.Device()); err != nil {
		return nil, err
	}
	key := settings{c.Threads(), c.Autocast()}
	if p := m.pipes[key]; p != nil {
		return p, nil
	}
	for _, p := range nn.State(m.model) {
		if !p.Exists() {
			return nil, fmt.Errorf("autoremat: there is no parameter %q yet; call nn.Materialise", p.Name)
		}
	}
	config := pipe.Config{Devices: []torch.Device{c.Device()}, Checkpoint: pipe.Optimal,
		Threads: key.threads, Autocast: key.autocast}
	if m.config.Optimizer != nil {
		config.Optimizer = updater{m.config.Optimizer}
	}
	p, err := pipe.Open(m.model, config)
	if err == nil {
		m.pipes[key] = p
	}
	return p, err
}

// updater is an optimizer that counts the bytes of its update as state.
type updater struct{ optim.Optimizer }

// Need returns the bytes for the parameters of a model. If the model is a part of another one, the
// optimizer knows them by longer names.
func (o updater) Need(params []nn.NamedParam) optim.Need {
	params, steps := slices.Clone(params), o.Steps()
	for i, p := range params {
		for other, n := range steps {
			if n > 0 && steps[p.Name] == 0 && strings.HasSuffix(other, "."+p.Name) {
				params[i].Name = other
			}
		}
	}
	need := o.Optimizer.Need(params)
	return optim.Need{State: need.State + need.Scratch}
}

// SetLimit sets the module's limit in bytes. The next forward makes a new plan.
func (m *Module) SetLimit(limit int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if limit <= 0 {
		return fmt.Errorf("autoremat: a limit of %d bytes; want more", limit)
	}
	if m.config.Limit = limit; m.release != nil {
		m.release()
		m.release = engine.Restrict(m.device, limit)
	}
	return nil
}

// Plan is the plan of the latest forward, or nil. The caller must not change it.
func (m *Module) Plan() *plan.Plan {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.plan
}

// Predicted is a bound on the live bytes of the device during the step of the latest forward, up to
// the update if Config has the optimizer, or else up to the backward.
func (m *Module) Predicted() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.plan == nil {
		return 0
	}
	return m.plan.Devices[0].Peak
}

// Close ends the module and restores the limit that the device had before. It is idempotent. Later
// backwards of earlier forwards fail.
func (m *Module) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.endMeasurement()
	for _, p := range m.pipes {
		_ = p.Close() // fails if a layer closes the module that it is in
	}
	if m.release != nil {
		m.release()
	}
	m.release, m.closed = nil, true
}

// Atomic makes one layer of s, to be kept or recomputed as a whole. It has the names and parameters
// of s, which stays the caller's.
func Atomic(s *nn.Sequential) nn.Layer { return nn.Tuple(s, s.ForwardTuple) }
