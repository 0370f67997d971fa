package autoremat

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"penstock/internal/arg"
	"penstock/nn"
	"penstock/profile"
	"penstock/remat"
	"penstock/segment"
	"penstock/torch"
)

// Sample is a batch to measure with. Its tensors stay the caller's.
type Sample struct {
	Input  []*torch.Tensor // the model's input
	Target []*torch.Tensor // of Config.Loss; without them the loss makes its own (nn.Targeted), or is learnt from the first step
}

// instance is the model for batches of one kind.
type instance struct {
	key      string
	segment  *segment.Segment
	chain    profile.Chain
	prologue prologue
	loss     *loss // nil if it is not known

	corrections []correction   // by layer of the chain
	madeAgain   correction     // of the last layer in plans that compute it again after the loss
	taught      map[about]bool // a step has been watched

	ops   []remat.Op // nil before there is a plan
	plan  remat.Plan
	given bool // the plan is the user's
	stale bool // there may be a better plan

	// Of the latest forward.
	present []presence
	lacks   []int64
	base    int64 // live when it began
	latest  *job
}

// prologue is what the units before the chain take, in bytes beside those before it: most, and afterwards.
type prologue struct{ peak, held int64 }

// keyOf tells kinds of batches apart: by types, shapes and wanted gradients of the input, and autocast.
func keyOf(c *nn.Ctx, xs []*torch.Tensor) string {
	words := torch.Describe(xs)
	for i, x := range xs {
		if x != nil && x.RequiresGrad() {
			words[i] += " with gradient"
		}
	}
	if c.Autocast() {
		words = append(words, "autocast")
	}
	return strings.Join(words, ", ")
}

// Measure measures the model for batches like the sample: seconds and bytes of its units (profile.Measure), what the optimizer's update takes, and, given targets, the loss. Forward does it by itself
// where it has not been done. c says where and how the model runs; no Forward may run meanwhile. It returns ctx's error when ctx ends, and a *profile.Error for a layer that fails.
func (m *Module) Measure(ctx context.Context, c *nn.Ctx, s Sample) error {
	if err := cmp.Or(arg.Context(ctx, "autoremat"), arg.Given(c, "autoremat: Measure: the nn.Ctx", "one of nn.NewCtx")); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forgetLesson()
	delete(m.cases, keyOf(c, s.Input))
	_, err := m.measured(ctx, c, s)
	return err
}

// measured is the instance for a batch, which it measures if it is new.
func (m *Module) measured(ctx context.Context, c *nn.Ctx, s Sample) (*instance, error) {
	if m.closed {
		return nil, fmt.Errorf("autoremat: %w", ErrClosed)
	}
	for i, x := range s.Input {
		if x == nil || x.Freed() {
			return nil, fmt.Errorf("autoremat: input %d does not exist", i)
		}
	}
	if err := m.bounds.bind(c.Device(), m.config.Limit); err != nil {
		return nil, err
	}
	key := keyOf(c, s.Input)
	if known := m.cases[key]; known != nil {
		m.latest = known
		return known, nil
	}
	for _, p := range nn.State(m.model) {
		if !p.Exists() {
			return nil, fmt.Errorf("autoremat: the parameter %q does not exist; call nn.Materialise before", p.Name)
		}
	}
	m.shared = nn.SharedBeyond(m.model)

	// Not under the limit, and not part of what the user measures.
	device, account := c.Device(), c.Device().Memory()
	m.bounds.lift()
	defer func() {
		device.ResetPeak()
		device.RaisePeak(account.Peak)
		device.Trim()
		m.bounds.enforce()
	}()
	n, err := m.measure(ctx, c, s)
	if own := device.Memory().Limit; own > 0 && errors.Is(err, torch.ErrOutOfMemory) { // measuring takes more than some plans do, and what would do can only be said when it is known
		device.SetLimit(0)
		defer device.SetLimit(own)
		n, err = m.measure(ctx, c, s)
	}
	if err != nil {
		return nil, err
	}
	n.key = key
	m.cases[key], m.latest = n, n
	return n, nil
}

func (m *Module) measure(ctx context.Context, c *nn.Ctx, s Sample) (*instance, error) {
	n := &instance{}
	var buffers nn.BufferCopy // of layers that change some also where running statistics are not to move
	buffers.Take(nn.Buffers(m.model))
	defer buffers.Restore()
	loss := torch.NewCtx(torch.Options{Device: c.Device(), Threads: c.Threads(), Autocast: c.Autocast()})
	defer loss.Close()
	if len(s.Target) == 0 {
		if err := torch.Try(func() { s.Target = m.standIns(c.Fork(loss, nn.Fork{Recomputing: true}), s.Input) }); err != nil {
			return nil, fmt.Errorf("autoremat: targets for Config.Loss, from what the model gives: %w; call Measure with targets, or leave Config.Loss out", err)
		}
	}
	if err := m.measureChain(ctx, c, s, n); err != nil {
		return nil, err
	}
	err := torch.Try(func() {
		t := torch.NewCtx(torch.Options{Device: c.Device(), Threads: c.Threads(), Autocast: c.Autocast()})
		defer t.Close()
		m.rehearse(c.Fork(t, nn.Fork{Recomputing: true}), t, s, n)
	})
	if err != nil {
		return nil, fmt.Errorf("autoremat: trying a step: %w", err)
	}
	return n, nil
}

func (m *Module) measureChain(ctx context.Context, c *nn.Ctx, s Sample, n *instance) error {
	inputGrad := false
	for _, x := range s.Input {
		inputGrad = inputGrad || x.RequiresGrad()
	}
	cfg := profile.Config{
		Device: c.Device(), Peer: c.Device(), Threads: c.Threads(), Warmup: m.config.Warmup, Repeats: m.config.Repeats, Extras: c.Extras(), Autocast: c.Autocast(),
		Balance: []int{len(m.layers)}, InputGrad: inputGrad, MostUnits: cmp.Or(m.config.MostUnits, 2000),
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
	n.corrections, n.taught = make([]correction, len(n.chain.Layers)), map[about]bool{}
	// What was measured may have let go of the output while the last layer went back. The caller holds the one that was given out; how much of that counts the first step shows. One that is made again
	// after the loss nobody else holds.
	last := len(n.chain.Layers) - 1
	n.corrections[last].first, n.corrections[last].later = n.chain.Layers[last].Output, n.chain.Layers[last].Output
	n.segment, err = segment.New(segment.Config{Layers: m.layers, Routes: m.routes, Last: len(m.layers), Units: n.chain.Units, InputGrad: inputGrad})
	if err != nil {
		return fmt.Errorf("autoremat: %w", err)
	}
	return nil
}

// standIns are targets that the loss makes for itself; nil if it cannot.
func (m *Module) standIns(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
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

// rehearse runs the prologue, and with targets the rest of the model without gradients and the loss, forward and backward, to see what they take.
func (m *Module) rehearse(n *nn.Ctx, t *torch.Ctx, s Sample, into *instance) {
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
	r := &rehearsal{lesson: &lesson{device: device}}
	attached := t.Attach(nil, list, r)
	torch.FreeAll(ys)
	for i, k := range at {
		ys[i] = attached[k]
	}
	r.lesson.begin()
	defer r.lesson.drop()
	t.SetGrad(true)
	l := nn.RunLoss(n, m.config.Loss, ys, s.Target)
	t.Backward([]*torch.Tensor{l}, []*torch.Tensor{nil}, false)
	r.lesson.loss.kept = device.Memory().Live - r.lesson.returned
	into.loss = &r.lesson.loss
}

// rehearsal stands for a model in the graph of a loss.
type rehearsal struct{ lesson *lesson }

// Backward sees what the loss takes.
func (r *rehearsal) Backward(_ *torch.Ctx, a *torch.Arrival) { r.lesson.arrive(a.Grads) }

// Forget does nothing: nothing is held.
func (r *rehearsal) Forget() {}
