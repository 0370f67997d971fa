// Package profile measures a model: seconds and bytes of its layers, and of the units of a
// rematerialisation plan. Bytes are exact, from the device's account. It decides nothing: package
// balance cuts a model by these measurements, and package remat finds what to keep and what to
// recompute.
//
//	p, err := profile.Measure(ctx, model, profile.Config{}, sample) // the rows of a micro-batch
//	counts, times, err := balance.ByTime(p.Layers, 2, balance.TimeConfig{SecondsPerByte: p.SecondsPerByte, Skips: p.Skips})
//
// Layers run as a pipe runs them (package segment): on their true inputs, in training mode, one
// micro-batch at a time. One sweep over the model is enough for everything:
//
//	layers.go      every layer, as a unit of its own: what it saves for backward
//	passes.go      the times of every layer, in passes that are like training steps
//	beside.go      while other devices work too
//	state.go       a layer made ready to run, and put back
//	device.go      devices that measure, and that work meanwhile
//	found.go       the view of package balance: layers, skips, ties
//	units.go       which layers are one unit, because a plan gains nothing from keeping them apart
//	forwards.go    the bytes of every unit's forwards, by the operations of a plan
//	backwards.go   those of its backwards, from the gradients that the units after it leave
//	deferred.go    what every unit leaves to the second part of a backward
//	assemble.go    the view of package remat: chains
//
// Not measured: kernels that two stages slow down for each other by sharing a cache or a memory
// bus, unless Config.Devices has other devices work meanwhile.
package profile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"penstock.example/balance"
	"penstock.example/internal/arg"
	"penstock.example/nn"
	"penstock.example/torch"
)

// Config says what is measured, and how. The zero value measures layers, without chains, on cpu:0,
// with one thread.
type Config struct {
	// Device is where the layers run. Its account must be quiet meanwhile: bytes are read from it. Parameters that
	// exist on other GPUs are copied there while their layer is measured.
	// On a CUDA device it is the default stream that works, and what is given is there for it.
	Device torch.Device
	// Peer is the device that transfers are timed to. On CPU devices it makes no difference which.
	Peer torch.Device
	// Devices is how many CPU devices work at once in training, this one among them. Layers are timed on as many at once,
	// as far as there are cores: others take caches, memory and clock from a core. 0 is one.
	Devices int
	Threads int // intra-op threads, at most torch.MaxThreads; 0 is 1
	// Warmup is how many passes over layers come before the timed ones. 0 is one, and none where passes take long.
	Warmup int
	// Repeats is how many timed passes there are, of which the lower quartile counts. 0 is five, and fewer, at
	// least two, where passes take long.
	Repeats  int
	Seed     uint64
	Extras   []nn.Extra     // what the layers expect of a batch that is no tensor
	Autocast torch.Autocast // run forwards in this type where that is safe, as a pipe with Autocast does
	// Clock is what runs are timed by: the difference of two readings, on the goroutine that
	// measures. Nil is the processor time of its thread (torch.ThreadTime) where Threads is 1 and
	// Device a CPU, so that others who use the processor do not count, on a CUDA device the time
	// between events, and else the time of day. With a clock layers are timed on one device.
	Clock func() time.Duration
	// BytesOnly leaves the seconds at 0.
	BytesOnly bool
	// Progress is called, if it is not nil, now and then with how many of so many layers are done,
	// and at the end, one call at a time.
	Progress func(done, layers int)

	// Balance cuts the model into stages of so many layers, each of which gets a chain. Nil is no
	// chains.
	Balance []int
	// Workers is the device of each stage, as a number. What moves between two stages on one device
	// stays where it is; otherwise it is copied. Nil is a device for each.
	Workers []int
	// MicroBatches is how many micro-batches a step has. With 1 a backward finds in the caches what its forward has
	// just left there. 0 is several, of which some are in flight at once.
	MicroBatches int
	// Loss follows the last layer. Target has the rows of the sample.
	Loss   nn.Loss
	Target []*torch.Tensor
	// Fewer is a sample of fewer rows, with FewerTarget, for Chain.Fewer. Nil is none.
	Fewer, FewerTarget []*torch.Tensor
	// LossUnit makes the loss the last unit of the last chain, whose backward may come long after
	// its forward, as in a pipe. Otherwise it is the chain's Loss, forward and backward at once.
	LossUnit bool
	// InputGrad says that the sample's own gradient is wanted. It is if an element of the sample
	// requires one.
	InputGrad bool
	// MostUnits is the most units that a model is cut into. Beyond it cuts inside of skip
	// connections are given up first. 0 is 400: stages with several micro-batches are solved by
	// tables, whose time grows with the cube of the units. A single chain can have 2,000.
	MostUnits int
	// DeferredBatchNorm measures forwards that gather the statistics of a mini-batch; see
	// nn.Deferred.
	DeferredBatchNorm bool
	// Split measures also what units defer where backwards are in two parts (remat.Chain.Deferred).
	Split bool
	// FirstOnly has chains be of the first micro-batch alone, which a search goes by: without Later, Split,
	// Footprint, which plans to the byte go by. That takes half as long.
	FirstOnly bool
	// LiftLimit measures without the limit of Device where that has no room, and holds as little as it can
	// (Profile.Beyond). For only a measurement tells the least limit that will do.
	LiftLimit bool
	// Known is an earlier profile of the model, for micro-batches of the same shapes and with the
	// same loss. Its layers and times are not measured again. A profile of something else is not
	// used. Nil is none.
	Known *Profile
}

// ConfigError is a setting that is refused.
type ConfigError = arg.ConfigError

// Profile is what was measured, for one micro-batch of the sample's rows.
type Profile struct {
	Layers []balance.Layer // the model's flattened layers; the loss is not among them
	Skips  []balance.Skip  // between different layers
	Ties   []balance.Tie   // parameters that different layers use
	Input  int64           // bytes of the sample
	// SecondsPerByte is the time of transfers between stages: the mean over all that layers of this
	// model give each other.
	SecondsPerByte float64
	Timing         Timing  // of all layers
	Chains         []Chain // by stage of Config.Balance
	// Most is the bytes that were live on Config.Device at any moment while it measured, what was there before
	// included. Beyond is its limit if that had no room; 0 otherwise.
	Most, Beyond int64

	sweep sweep
}

// sweep is what is measured of a model whatever it is cut into.
type sweep struct {
	of    string // the model, the sample and the settings that it was measured with
	found found
	times []unitTimes // by layer; the loss, if there is one, is the last
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
// On a CPU without a limit it holds inputs of units, at most 256 MiB, and as many bytes in passes over several layers.
// A limit leaves room for less, which takes longer. The least that has to fit is a unit by itself, with its input, what
// its backward holds, and the model's input. A step with one stage holds as much under any limit, but for a copy
// of its output, of skips that go on, and with Config.Split of its input and its gradients.
func Measure(ctx context.Context, model *nn.Sequential, config Config, sample ...*torch.Tensor) (Profile, error) {
	out := Profile{}
	err := measuring(ctx, model, config, sample, func(p *prober) error {
		of, limit := p.describe(sample), p.Device.Memory().Limit
		err := out.measure(p, of, sample)
		if p.isFull(err) && p.LiftLimit {
			p.Device.SetLimit(0)
			defer p.Device.SetLimit(limit)
			p.drop()
			out.Beyond, p.isLean = limit, true
			err = out.measure(p, of, sample)
		}
		p.see()
		out.Most = p.most
		return err
	})
	if err != nil {
		return Profile{}, err
	}
	return out, nil
}

// measuring checks the settings, and runs f with a prober, on a thread of its own.
func measuring(ctx context.Context, model *nn.Sequential, config Config, sample []*torch.Tensor, f func(p *prober) error) error {
	if err := cmp.Or(arg.Context(ctx, "profile"), arg.Given(model, "profile: the model", "an nn.Sequential")); err != nil {
		return err
	}
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
		p.Device.ResetPeak()
		return f(p)
	})
}

// measure is Measure on the thread that measures.
func (out *Profile) measure(p *prober, of string, sample []*torch.Tensor) (err error) {
	looking, forwards, backwards := p.shares(p.Known != nil && p.Known.sweep.of == of)
	if p.begin(looking); looking == 0 {
		out.sweep = p.Known.sweep
	} else if out.sweep, err = p.sweep(of, sample); err != nil {
		return err
	}
	out.view(p.layers[:p.model], &p.Config)
	if p.Balance != nil {
		if out.Chains, err = p.chains(&out.sweep, sample, forwards, backwards); err != nil {
			return err
		}
	}
	if p.Balance != nil && p.Fewer != nil {
		if err := out.fewer(p); err != nil {
			return err
		}
	}
	p.begin(0)
	p.tell(1)
	return nil
}

// fewer measures the chains of micro-batches of fewer rows. Their units are those of the others.
func (out *Profile) fewer(p *prober) error {
	defer func(was []*torch.Tensor) { p.Target = was }(p.Target)
	p.Target = p.FewerTarget
	p.drop()
	chains, err := p.chains(&out.sweep, p.Fewer, 0, 0)
	for i := range chains {
		out.Chains[i].Fewer = &chains[i]
	}
	return err
}

// shares are the parts of the time that the look at each layer with its passes, the forwards of units and their backwards
// take, about.
func (p *prober) shares(isKnown bool) (looking, forwards, backwards float64) {
	switch {
	case isKnown:
	case p.BytesOnly:
		looking = 1
	default:
		looking = 20
	}
	if p.Balance != nil {
		forwards, backwards = 4, 8
	}
	all := max(looking+forwards+backwards, 1)
	return looking / all, forwards / all, backwards / all
}

// describe names everything that a sweep depends on. It does not tell losses of one type apart, as
// their times are the same.
func (c *prober) describe(sample []*torch.Tensor) string {
	words := torch.Describe(sample)
	for _, l := range c.layers[:c.model] {
		words = append(words, l.Name)
	}
	return fmt.Sprint(words, c.Device.Kind, c.MicroBatches == 1, c.Threads, c.Autocast, c.InputGrad, c.BytesOnly, fmt.Sprintf("%T", c.Loss))
}

func (c Config) resolved(layers []nn.NamedLayer, sample []*torch.Tensor) (Config, error) {
	switch {
	case len(layers) == 0:
		return c, errors.New("profile: the model has no layers")
	case len(sample) == 0:
		return c, errors.New("profile: no sample; give the model's input with the rows of a micro-batch")
	}
	err := cmp.Or(arg.Between("profile", "Threads", c.Threads, 0, torch.MaxThreads), arg.AtLeast("profile", "Warmup", c.Warmup, 0), arg.AtLeast("profile", "Repeats", c.Repeats, 0),
		arg.AtLeast("profile", "Devices", c.Devices, 0),
		arg.AtLeast("profile", "MicroBatches", c.MicroBatches, 0), arg.AtLeast("profile", "MostUnits", c.MostUnits, 0))
	if err != nil {
		return c, err
	}
	for i, x := range sample {
		if x == nil || x.Freed() {
			return c, fmt.Errorf("profile: tensor %d of the sample does not exist; keep it until Measure returns", i)
		}
		c.InputGrad = c.InputGrad || x.RequiresGrad()
	}
	if !slices.ContainsFunc(sample, func(x *torch.Tensor) bool { return x.Numel() > 0 }) {
		return c, fmt.Errorf("profile: the sample has no rows (%s); a step needs at least one", strings.Join(torch.Describe(sample), ", "))
	}
	for _, f := range []struct {
		field string
		d     torch.Device
	}{{"Device", c.Device}, {"Peer", c.Peer}} {
		if f.d.Index < 0 || f.d.Kind == torch.KindCPU && f.d.Index >= torch.MaxCPU {
			return c, &ConfigError{Of: "profile", Field: f.field, Value: f.d, Problem: "there is no such device", Remedy: fmt.Sprintf("want an index from 0 to %d", torch.MaxCPU-1)}
		}
		if err := f.d.Usable(); err != nil {
			return c, &ConfigError{Of: "profile", Field: f.field, Value: f.d, Problem: err.Error(), Remedy: "want cpu:0, cpu:1, ..."}
		}
	}
	switch {
	case c.Loss != nil && len(c.Target) == 0:
		return c, &ConfigError{Of: "profile", Field: "Target", Value: c.Target, Problem: "there are none for the loss", Remedy: "want those of the sample"}
	case c.Workers != nil && len(c.Workers) != len(c.Balance):
		return c, &ConfigError{Of: "profile", Field: "Workers", Value: c.Workers, Problem: fmt.Sprintf("%d for %d stages", len(c.Workers), len(c.Balance)), Remedy: "want one for each stage"}
	case c.Fewer != nil && !slices.ContainsFunc(c.Fewer, func(x *torch.Tensor) bool { return x != nil && !x.Freed() && x.Numel() > 0 }):
		return c, &ConfigError{Of: "profile", Field: "Fewer", Value: torch.Describe(c.Fewer), Problem: "it has no rows", Remedy: "want a sample of fewer rows, or nil"}
	case c.Fewer != nil && c.Loss != nil && len(c.FewerTarget) == 0:
		return c, &ConfigError{Of: "profile", Field: "FewerTarget", Value: c.FewerTarget, Problem: "there are none for the loss", Remedy: "want those of Fewer"}
	case c.Balance != nil:
		if err := arg.Balance("profile", c.Balance, len(layers)); err != nil {
			return c, err
		}
	}
	c.Threads = max(c.Threads, 1)
	if c.MostUnits == 0 {
		c.MostUnits = 400
	}
	return c, nil
}
