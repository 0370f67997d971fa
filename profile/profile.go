// Package profile measures a model: seconds and bytes of its layers, and of the units of a
// rematerialisation plan. Bytes are exact, from the device's account. Package plan cuts a model by
// these measurements, and chooses the activations to keep.
//
//	p, err := profile.Measure(ctx, model, profile.Config{}, sample) // the rows of a micro-batch
//	config := plan.TimeConfig{SecondsPerByte: p.SecondsPerByte, Skips: p.Skips}
//	counts, times, err := plan.ByTime(p.Layers, 2, config)
//
// Layers run as a pipe runs them: on their true inputs, in training mode, one micro-batch at a
// time. Two stages that share a cache or a memory bus slow each other down. That is measured only
// if Config.Devices has other devices work meanwhile.
package profile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
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
	// Devices is the number of CPU devices that work at once in training, where cores share caches,
	// memory and clock. As many layers are timed at once, but one for each core at most. 0 is 1.
	Devices int
	Threads int // of each operator, at most 256; 0 is 1
	// Repeats is the number of timed passes, of which the 25th percentile counts. 0 is 5, or as few
	// as 2 if passes take long.
	Repeats  int
	Seed     uint64
	Extras   map[string]any // batch values that are not tensors
	Autocast torch.Autocast // the type of forwards, as in a pipe
	// Clock is read before and after each run; layers then run one at a time. Nil is the thread's
	// processor time for one thread on a CPU, events on a GPU, and otherwise the time of day.
	Clock     func() time.Duration
	BytesOnly bool // seconds stay 0
	// Progress is called from time to time, and at the end. It may be nil.
	Progress func(done, layers int)

	Balance []int // the number of layers of each stage, which gets a chain; nil is no chains
	// Workers is the device of each stage, as a number. Between stages on one device nothing is
	// copied. Nil is a device for each.
	Workers []int
	// MicroBatches is the number of micro-batches of a step. Only 1 matters: a backward then finds
	// its forward's memory in the caches.
	MicroBatches int
	Loss         nn.Loss         // follows the last layer; nil is none
	Target       []*torch.Tensor // of the sample
	// Fewer is a sample of fewer rows, with FewerTarget, for Chain.Fewer. Nil is none.
	Fewer, FewerTarget []*torch.Tensor
	// LossUnit makes the loss the last unit of the last chain, with a backward long after its
	// forward, as in a pipe. Otherwise it is the chain's Loss, forward and backward at once.
	LossUnit  bool
	InputGrad bool // the sample's gradient is computed; implied if the sample requires a gradient
	// DeferredBatchNorm says that forwards gather the statistics of a mini-batch; see nn.Deferred.
	DeferredBatchNorm bool
	Split             bool // backwards in two parts are measured, too
	// LiftLimit measures again without limits if those of Device and Peer are too low, and then
	// holds as little as it can. So an error can name the least limit that is enough.
	LiftLimit bool
	// Known is an earlier profile, or nil. Its layers and times are taken over if model, shapes,
	// settings and loss are the same.
	Known *Profile
}

// Profile is a measurement, for one micro-batch of the sample's rows.
type Profile struct {
	Layers         []plan.Layer     // the model's flattened layers; the loss is not among them
	Skips          []plan.LayerSkip // between different layers
	Ties           []plan.LayerTie  // parameters that different layers use
	Input          int64            // bytes of the sample
	SecondsPerByte float64          // of transfers between stages: the mean over all layers' outputs
	Timing         Timing           // of all layers
	Chains         []Chain          // by stage of Config.Balance

	measured *layerMeasurement
}

// Measure measures each of the model's flattened layers, and the stages of Config.Balance. The
// sample, which stays the caller's, is the model's input with the rows of a micro-batch.
//
// Nobody else may use the model or the device until Measure returns. The model is then as it was,
// after errors too: gradients are put back, running statistics do not move, and parameters that do
// not exist yet exist only while their layer is measured. Measure locks its goroutine to a thread.
// If ctx ends it stops between two runs of a layer, with ctx's error. A layer fails with an *Error.
//
// Under a limit Measure holds less, which takes longer. The model's input and one unit at a time,
// with its input and the memory of its backward, must fit.
func Measure(ctx context.Context, model *nn.Sequential, config Config, sample ...*torch.Tensor) (
	Profile, error) {
	out := &Profile{}
	err := withProber(ctx, model, config, sample, func(p *prober) {
		key := p.settingsKey(sample)
		if p.Known != nil && p.Known.measured != nil && p.Known.measured.key == key {
			out.measured = p.Known.measured
		}
		err := out.measure(p, key, sample)
		if p.isFull(err) {
			p.isLean = true
			err = out.measure(p, key, sample)
		}
		if p.isFull(err) && p.LiftLimit {
			for _, d := range []torch.Device{p.Device, p.Peer} {
				defer d.SetLimit(d.Memory().Limit)
				d.SetLimit(math.MaxInt64)
			}
			err = out.measure(p, key, sample)
		}
		check(err)
		out.setLayers(p.layers[:p.model])
		p.begin(1)
		p.tell(1)
	})
	if err != nil {
		return Profile{}, err
	}
	return *out, nil
}

// withProber checks the settings and runs f, on a thread of its own.
func withProber(ctx context.Context, model *nn.Sequential, config Config, sample []*torch.Tensor,
	f func(p *prober)) error {
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
		return attempt(theSample, func() { f(p) })
	})
}

func (out *Profile) measure(p *prober, key string, sample []*torch.Tensor) error {
	return attempt(theSample, func() {
		defer p.c.Close()
		if p.to = 0; out.measured == nil {
			if p.begin(1); p.Balance != nil {
				p.to = 0.6
			}
			out.measured = p.measureLayers(key, sample)
		}
		if p.Balance == nil {
			return
		}
		if out.Chains = p.chains(out.measured, sample); p.Fewer != nil {
			defer func(was []*torch.Tensor) { p.Target = was }(p.Target)
			p.Target = p.FewerTarget
			for i, c := range p.chains(out.measured, p.Fewer) {
				out.Chains[i].Fewer = &c
			}
		}
	})
}

// settingsKey is the same for measurements with the same layers and times. Losses of one type are
// assumed to take the same time.
func (p *prober) settingsKey(sample []*torch.Tensor) string {
	words := torch.Describe(sample)
	for _, l := range p.layers[:p.model] {
		words = append(words, l.Name)
	}
	return fmt.Sprint(words, p.Device.Kind, p.MicroBatches == 1, p.Threads, p.Autocast, p.InputGrad,
		p.BytesOnly, p.Split, fmt.Sprintf("%T", p.Loss))
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
		return c, errors.New("profile: no target for the loss; give Target, and with Fewer also FewerTarget")
	}
	err := cmp.Or(c.Device.Usable(), c.Peer.Usable(),
		arg.Between("profile", "Threads", c.Threads, 0, system.MaxThreads))
	if err == nil && c.Balance != nil {
		err = arg.Balance("profile", c.Balance, len(layers))
	}
	return c, err
}
