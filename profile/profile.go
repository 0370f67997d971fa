// Package profile measures a model: seconds and bytes of its layers, and of the units of a
// rematerialisation plan. Bytes are exact, from the device's account. Package plan cuts a model by
// these measurements, and chooses the activations to keep.
//
//	p, err := profile.Measure(ctx, model, profile.Config{}, sample) // the rows of a micro-batch
//	config := plan.TimeConfig{SecondsPerByte: p.SecondsPerByte, Skips: p.Skips}
//	counts, times, err := plan.ByTime(p.Layers, 2, config)
//
// Layers run as a pipe runs them: on their true inputs, in training mode, one micro-batch at a time.
// Not measured is how much two stages slow each other down by sharing a cache or a memory bus,
// unless Config.Devices has other devices work meanwhile.
package profile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"penstock.example/internal/arg"
	"penstock.example/internal/system"
	"penstock.example/nn"
	"penstock.example/plan"
	"penstock.example/torch"
)

// Config is the settings of a measurement. The zero value measures layers, without chains, on
// cpu:0, with one thread.
type Config struct {
	// Device is where the layers run; on a GPU on its default stream. Nobody else may use it
	// meanwhile. Parameters on other GPUs are copied there while their layer is measured.
	Device torch.Device
	Peer   torch.Device // where transfers are timed to; CPU devices are all alike
	// Devices is the number of CPU devices that work at once in training. As many layers are timed
	// at once, one for each core at most, since cores share caches, memory and clock. 0 is 1.
	Devices int
	Threads int // of each operator, at most 256; 0 is 1
	// Repeats is the number of timed passes, of which the lower quartile counts. 0 is 5, and fewer,
	// at least 2, if passes take long.
	Repeats  int
	Seed     uint64
	Extras   map[string]any // batch values that are not tensors
	Autocast torch.Autocast // the type of forwards, as in a pipe
	// Clock times runs, as the difference of two readings, one layer at a time. Nil is the processor
	// time of the thread for one thread on a CPU, events on a GPU, and else the time of day.
	Clock     func() time.Duration
	BytesOnly bool // seconds stay 0
	// Progress is called now and then with the number of measured layers, and at the end. Nil is
	// not called.
	Progress func(done, layers int)

	Balance []int // the number of layers of each stage, which gets a chain; nil is no chains
	// Workers is the device of each stage, as a number. Between stages on one device nothing is
	// copied. Nil is a device for each.
	Workers []int
	// MicroBatches is the number of micro-batches of a step; 0 is several, some of them in flight
	// at once. With 1 a backward finds the memory of its forward in the caches.
	MicroBatches int
	Loss         nn.Loss         // follows the last layer; nil is none
	Target       []*torch.Tensor // of the sample
	// Fewer is a sample of fewer rows, with FewerTarget, for Chain.Fewer. Nil is none.
	Fewer, FewerTarget []*torch.Tensor
	// LossUnit makes the loss the last unit of the last chain, with a backward long after its
	// forward, as in a pipe. Otherwise it is the chain's Loss, forward and backward at once.
	LossUnit bool
	// InputGrad says that the sample's gradient is wanted. It is as well if an element of the sample
	// requires one.
	InputGrad         bool
	DeferredBatchNorm bool // forwards gather the statistics of a mini-batch; see nn.Deferred
	Split             bool // measure also backwards in two parts
	// LiftLimit measures without the limit of Device where that has no room, and holds as little as
	// it can. For only a measurement tells the least limit that will do.
	LiftLimit bool
	// Known is an earlier profile. Its layers and times are not measured again if it is of the same
	// model, shapes, settings and loss. Nil is none.
	Known *Profile
}

// Profile is a measurement, for one micro-batch of the sample's rows.
type Profile struct {
	Layers []plan.Layer     // the model's flattened layers; the loss is not among them
	Skips  []plan.LayerSkip // between different layers
	Ties   []plan.LayerTie  // parameters that different layers use
	Input  int64            // bytes of the sample
	// SecondsPerByte is the time of transfers between stages: the mean over all that layers of this
	// model give each other.
	SecondsPerByte float64
	Timing         Timing  // of all layers
	Chains         []Chain // by stage of Config.Balance

	looked looked
}

// looked is the part of a measurement that does not depend on the cut.
type looked struct {
	of    string // the model, the sample and the settings that it was measured with
	found found
	times []unitTimes // by layer, with the loss
	// devices is how many worked while any layer was timed; 0 where none was.
	devices int
}

// Measure measures each of the model's flattened layers, and the stages of Config.Balance for
// rematerialisation. The sample is the model's input, a tensor or a tuple, with the rows of a
// micro-batch; it stays the caller's.
//
// The model is as it was when Measure returns, after errors too: gradients are put back, running
// statistics do not move, and parameters that do not exist yet are made for the time their layer is
// measured. Until then neither the model nor the device may be used by others. Measure locks its
// goroutine to a thread while it runs. It stops between two runs of a layer when ctx ends, with
// ctx's error. A failure in a layer is an *Error.
//
// Under a limit it holds less, which takes longer. The least that has to fit is a unit by itself,
// with its input, what its backward holds, and the model's input.
func Measure(ctx context.Context, model *nn.Sequential, config Config, sample ...*torch.Tensor) (
	Profile, error) {
	out := Profile{}
	err := measuring(ctx, model, config, sample, func(p *prober) error {
		of, limit := p.describe(sample), p.Device.Memory().Limit
		err := out.measure(p, of, sample)
		if p.isFull(err) && p.LiftLimit {
			p.Device.SetLimit(0)
			defer p.Device.SetLimit(limit)
			p.isLean = true
			err = out.measure(p, of, sample)
		}
		return err
	})
	if err != nil {
		return Profile{}, err
	}
	return out, nil
}

// measuring checks the settings, and runs f with a prober, on a thread of its own.
func measuring(ctx context.Context, model *nn.Sequential, config Config, sample []*torch.Tensor,
	f func(p *prober) error) error {
	layers := model.Layers()
	config, err := config.resolved(layers, sample)
	if err != nil {
		return err
	}
	routes, err := model.SkipRoutes()
	if err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	defer config.Device.Trim() // training asks for other sizes
	defer config.Peer.Trim()
	return onThread(config.Threads, func() error {
		p := newProber(ctx, config, layers, routes)
		defer p.close()
		return f(p)
	})
}

// measure is Measure on the thread that measures.
func (out *Profile) measure(p *prober, of string, sample []*torch.Tensor) (err error) {
	if p.Balance != nil {
		p.all = sweepingForward + sweepingBackward
	}
	if p.Known != nil && p.Known.looked.of == of {
		out.looked = p.Known.looked
	} else {
		p.all += looking
		p.begin(looking)
		if out.looked, err = p.lookEach(of, sample); err != nil {
			return err
		}
	}
	out.view(p.layers[:p.model], p.routes)
	if p.Balance != nil {
		if out.Chains, err = p.chains(&out.looked, sample); err != nil {
			return err
		}
	}
	if p.Balance != nil && p.Fewer != nil {
		if err := out.fewer(p); err != nil {
			return err
		}
	}
	p.weight = p.all
	p.tell(1)
	return nil
}

// fewer measures the chains of micro-batches with fewer rows, with the same units.
func (out *Profile) fewer(p *prober) error {
	defer func(was []*torch.Tensor) { p.Target = was }(p.Target)
	p.Target = p.FewerTarget
	chains, err := p.chains(&out.looked, p.Fewer)
	for i := range chains {
		out.Chains[i].Fewer = &chains[i]
	}
	return err
}

// describe names everything that the measurement of layers depends on. Losses of one type have the
// same name, as their times are the same.
func (c *prober) describe(sample []*torch.Tensor) string {
	words := torch.Describe(sample)
	for _, l := range c.layers[:c.model] {
		words = append(words, l.Name)
	}
	return fmt.Sprint(words, c.Device.Kind, c.MicroBatches == 1, c.Threads, c.Autocast, c.InputGrad,
		c.BytesOnly, c.Split, fmt.Sprintf("%T", c.Loss))
}

// resolved checks the settings, and fills in defaults.
func (c Config) resolved(layers []nn.NamedLayer, sample []*torch.Tensor) (Config, error) {
	c.Threads = cmp.Or(c.Threads, 1)
	for _, x := range sample {
		c.InputGrad = c.InputGrad || x.RequiresGrad()
	}
	switch {
	case len(layers) == 0:
		return c, errors.New("profile: the model has no layers")
	case len(sample) == 0:
		return c, errors.New("profile: no sample; give the model's input with the rows of a micro-batch")
	case c.Loss != nil && (len(c.Target) == 0 || c.Fewer != nil && len(c.FewerTarget) == 0):
		return c, errors.New("profile: no target for the loss; want those of the sample, and of Fewer")
	}
	err := cmp.Or(c.Device.Usable(), c.Peer.Usable(),
		arg.Between("profile", "Threads", c.Threads, 0, system.MaxThreads))
	if err == nil && c.Balance != nil {
		err = arg.Balance("profile", c.Balance, len(layers))
	}
	return c, err
}
