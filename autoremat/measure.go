package autoremat

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"penstock.example/internal/arg"
	"penstock.example/nn"
	"penstock.example/profile"
	"penstock.example/remat"
	"penstock.example/segment"
	"penstock.example/torch"
)

// Sample is a batch to measure with. Its tensors stay the caller's.
type Sample struct {
	Input []*torch.Tensor // the model's input
	// Target is for Config.Loss. If it is empty, the loss makes its own (nn.Targeted) or is
	// measured in the first step.
	Target []*torch.Tensor
}

// instance is what is known for batches of one kind: the chain, the loss and the plan.
type instance struct {
	key      string
	segment  *segment.Segment
	chain    profile.Chain
	prologue prologue
	loss     *loss // nil until it is measured

	corrections    []correction      // by layer of the chain
	lastRecomputed correction        // for the last layer, in plans that recompute it after the loss
	observed       map[stepKind]bool // a step of that kind was measured

	ops   []remat.Op // nil before there is a plan
	plan  remat.Plan
	given bool // the plan was set by SetPlan
	stale bool // the plan was made with costs that have changed since

	// The rest is of the latest forward.
	present      []presence
	missingBytes []int64
	base         int64 // bytes live when it began
	latest       *job
}

// prologue is the bytes that the units before the chain add to those live before them: their peak,
// and what they leave.
type prologue struct{ peak, held int64 }

// keyOf identifies a kind of batches: types, shapes and wanted gradients of the input, and
// autocast.
func keyOf(c *nn.Ctx, xs []*torch.Tensor) string {
	words := torch.Describe(xs)
	for i, x := range xs {
		if x != nil && x.RequiresGrad() {
			words[i] += " with gradient"
		}
	}
	switch to := c.Autocast(); to {
	case torch.AutocastOff:
	case torch.AutocastBFloat16:
		words = append(words, "autocast")
	default:
		words = append(words, "autocast to "+to.String())
	}
	return strings.Join(words, ", ")
}

// Measure measures the model for batches like the sample: seconds and bytes of its units
// (profile.Measure), and with targets the loss. Forward does it by itself for a new kind of batch.
// c says where and how the model runs.
//
// It blocks until all is measured, and no Forward may run meanwhile. It returns ctx's error when
// ctx ends, and a *profile.Error for a layer that fails.
func (m *Module) Measure(ctx context.Context, c *nn.Ctx, s Sample) error {
	if err := cmp.Or(arg.Context(ctx, "autoremat"), arg.Given(c, "autoremat: Measure: the nn.Ctx", "one of nn.NewCtx")); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stopObserving()
	delete(m.instances, keyOf(c, s.Input))
	_, err := m.measured(ctx, c, s)
	return err
}

// measured returns the instance for a batch. It measures the model if the kind is new.
func (m *Module) measured(ctx context.Context, c *nn.Ctx, s Sample) (*instance, error) {
	if m.closed {
		return nil, fmt.Errorf("autoremat: %w", ErrClosed)
	}
	for i, x := range s.Input {
		if x == nil || x.Freed() {
			return nil, fmt.Errorf("autoremat: input %d does not exist", i)
		}
	}
	if err := m.limit.bind(c.Device(), m.config.Limit); err != nil {
		return nil, err
	}
	if m.modes.Changed() {
		clear(m.instances)
		m.latest = nil
	}
	key := keyOf(c, s.Input)
	if known := m.instances[key]; known != nil {
		m.latest = known
		return known, nil
	}
	for _, p := range nn.State(m.model) {
		if !p.Exists() {
			return nil, fmt.Errorf("autoremat: the parameter %q does not exist; call nn.Materialise before", p.Name)
		}
	}
	m.shared = nn.SharedBeyond(m.model)

	device, account := c.Device(), c.Device().Memory()
	defer func() {
		device.ResetPeak()
		device.RaisePeak(account.Peak)
		device.Trim()
		m.limit.enforce()
	}()
	n, err := m.measure(ctx, c, s, false)
	if errors.Is(err, torch.ErrOutOfMemory) {
		// Only a measurement tells the least limit. Where that has no room for it, it goes on without, and holds as
		// little as it can.
		m.limit.lift()
		own := device.Memory().Limit
		device.SetLimit(0)
		defer device.SetLimit(own)
		n, err = m.measure(ctx, c, s, true)
	}
	if err != nil {
		return nil, err
	}
	n.key = key
	m.instances[key], m.latest = n, n
	return n, nil
}

// measure measures the chain and the loss for a batch.
func (m *Module) measure(ctx context.Context, c *nn.Ctx, s Sample, lean bool) (*instance, error) {
	n := &instance{}
	var buffers nn.BufferCopy // some layers change buffers also where running statistics must not move
	buffers.Take(nn.Buffers(m.model))
	defer buffers.Restore()
	loss := torch.NewCtx(torch.Options{Device: c.Device(), Threads: c.Threads(), Autocast: c.Autocast()})
	defer loss.Close()
	if len(s.Target) == 0 {
		if err := torch.Try(func() { s.Target = m.lossTargets(c.Fork(loss, nn.Fork{Recomputing: true}), s.Input) }); err != nil {
			return nil, fmt.Errorf("autoremat: targets for Config.Loss, from what the model gives: %w; "+
				"call Measure with targets, or leave Config.Loss out", err)
		}
	}
	if err := m.measureChain(ctx, c, s, lean, n); err != nil {
		return nil, err
	}
	err := torch.Try(func() {
		t := torch.NewCtx(torch.Options{Device: c.Device(), Threads: c.Threads(), Autocast: c.Autocast()})
		defer t.Close()
		m.measureLoss(c.Fork(t, nn.Fork{Recomputing: true}), t, s, n)
	})
	if err != nil {
		return nil, fmt.Errorf("autoremat: trying a step: %w", err)
	}
	return n, nil
}

// measureChain measures the model's units and makes the segment that runs them.
func (m *Module) measureChain(ctx context.Context, c *nn.Ctx, s Sample, lean bool, n *instance) error {
	inputGrad := false
	for _, x := range s.Input {
		inputGrad = inputGrad || x.RequiresGrad()
	}
	cfg := profile.Config{
		Device: c.Device(), Peer: c.Device(), Threads: c.Threads(), Extras: c.Extras(), Autocast: c.Autocast(),
		MicroBatches: 1, Warmup: m.config.Warmup, Repeats: m.config.Repeats,
		Balance: []int{len(m.layers)}, InputGrad: inputGrad, LiftLimit: true, MostUnits: cmp.Or(m.config.MostUnits, 2000),
	}
	if len(s.Target) > 0 {
		cfg.Loss, cfg.Target = m.config.Loss, s.Target
	}
	measured, err := profile.Measure(ctx, m.model, cfg, s.Input...)
	if err != nil {
		return fmt.Errorf("autoremat: %w", err)
	}
	n.chain = measured.Chains[0]
	if len(n.chain.Layers) == 0 {
		return fmt.Errorf("autoremat: no layer of the model has a backward; run it without gradients")
	}
	n.corrections, n.observed = make([]correction, len(n.chain.Layers)), map[stepKind]bool{}
	// While profile measured the last layer's backward, its output may have been freed. In a step
	// the caller holds the output. The first step shows how much of it adds to the peak. An output
	// recomputed after the loss is held by nobody else.
	last := len(n.chain.Layers) - 1
	n.corrections[last].first, n.corrections[last].later = n.chain.Layers[last].Output, n.chain.Layers[last].Output
	n.segment, err = segment.New(segment.Config{
		Layers: m.layers, Routes: m.routes, Last: len(m.layers), Units: n.chain.Units, InputGrad: inputGrad,
	})
	if err != nil {
		return fmt.Errorf("autoremat: %w", err)
	}
	return nil
}

// lossTargets returns targets that the loss makes from the model's output; nil if it makes none.
func (m *Module) lossTargets(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
	loss, ok := m.config.Loss.(nn.Targeted)
	if !ok {
		return nil
	}
	given := make([]*torch.Tensor, len(xs))
	for i, x := range xs {
		if given[i] = c.Detach(x); m.model.OverwritesInput() {
			given[i] = c.Clone(x)
		}
	}
	targets := loss.Targets(c.Ctx, m.model.ForwardTuple(c, given))
	c.Release(0, targets...)
	return targets
}

// measureLoss measures the prologue. With targets it also runs the rest of the model without
// gradients, and measures forward and backward of the loss.
func (m *Module) measureLoss(n *nn.Ctx, t *torch.Ctx, s Sample, into *instance) {
	withLoss := m.config.Loss != nil && len(s.Target) > 0
	if into.chain.Prologue == 0 && !withLoss {
		return
	}
	j := &job{m: m, s: into, user: n, base: n, chain: len(into.chain.Layers)}
	defer j.Forget()
	device := t.Device()
	j.send(t, s.Input)
	before := device.Memory().Live
	device.ResetPeak()
	j.execution.Final = true
	for i := range into.chain.Prologue {
		j.execution.Do(t, remat.Op{Kind: remat.Forward, Layer: i})
	}
	account := device.Memory()
	into.prologue = prologue{account.Peak - before, account.Live - before}
	if !withLoss {
		return
	}
	for i := into.chain.Prologue; i < into.segment.Units(); i++ {
		j.execution.Do(t, remat.Op{Kind: remat.Forward, Layer: i})
	}
	ys, _ := j.execution.Take(into.segment.Units())
	list, at := torch.Distinct(ys)
	r := &lossNode{observed: &observation{device: device}}
	attached := t.Attach(nil, list, r)
	torch.FreeAll(ys)
	for i, k := range at {
		ys[i] = attached[k]
	}
	r.observed.forwardReturned()
	defer r.observed.stop()
	t.SetGrad(true)
	l := nn.RunLoss(n, m.config.Loss, ys, s.Target)
	t.Backward([]*torch.Tensor{l}, []*torch.Tensor{nil}, false)
	r.observed.loss.kept = device.Memory().Live - r.observed.returned
	into.loss = &r.observed.loss
}

// lossNode stands for the model in the graph of a loss.
type lossNode struct{ observed *observation }

// Backward ends the measurement of the loss.
func (r *lossNode) Backward(_ *torch.Ctx, a *torch.Arrival) { r.observed.gradientsArrived(a.Grads) }

// Forget does nothing, as nothing is held.
func (r *lossNode) Forget() {}
