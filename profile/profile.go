// Package profile measures the layers of a model one by one: seconds forward and backward, and bytes, exactly, from the device's account. What it finds are the layers that
// package balance cuts and the figures of a cost model; it decides nothing itself.
//
//	p, err := profile.Measure(ctx, model, profile.Config{}, sample) // the rows of a micro-batch
//	counts, times, err := balance.ByTime(p.Layers, 2, balance.TimeConfig{SecondsPerByte: p.SecondsPerByte, Skips: p.Skips})
//
// A layer is run as a pipe runs it: on its true input, in training mode, one micro-batch at a time. Only the layer that is being measured has to fit. What is not measured: kernels that two
// stages slow down for each other by sharing a cache or a memory bus, and the loss.
package profile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"penstock/balance"
	"penstock/internal/arg"
	"penstock/nn"
	"penstock/torch"
)

// Config says how layers are measured. The zero value is cpu:0, one thread, one warm-up and five timed runs.
type Config struct {
	// Device is where the layers run. Its account must be quiet meanwhile: bytes are read from it. On a CUDA device bytes are not counted, and are 0.
	Device torch.Device
	// Peer is the device that transfers are timed to. On CPU devices it makes no difference which.
	Peer     torch.Device
	Threads  int // intra-op threads, at most torch.MaxThreads; 0 is 1
	Warmup   int // runs of each layer before the timed ones; 0 is 1
	Repeats  int // timed runs of each layer, of which the lower quartile counts; 0 is 5
	Seed     uint64
	Extras   []nn.Extra // what the layers expect of a batch that is no tensor
	Autocast bool       // run forwards in bfloat16 where that is safe, as a pipe with Autocast does
	// Clock is what runs are timed by: the difference of two readings, on the goroutine that measures. Nil is the processor time of its thread (torch.ThreadTime) where Threads is 1 and Device a CPU, so
	// that others who use the processor do not count, and else the time of day.
	Clock func() time.Duration
	// BytesOnly leaves the seconds at 0 and runs each layer once.
	BytesOnly bool
	// Progress is called, if it is not nil, before each layer and once at the end, on the goroutine that measures.
	Progress func(done, layers int)
}

// ConfigError is a setting that is refused.
type ConfigError = arg.ConfigError

// Profile is what was measured, for one micro-batch of the sample's rows.
type Profile struct {
	Layers []balance.Layer // the model's flattened layers
	Skips  []balance.Skip  // between different layers
	Ties   []balance.Tie   // parameters that different layers use
	Input  int64           // bytes of the sample
	// SecondsPerByte of a transfer: all copies of what crosses borders in this model, by size.
	SecondsPerByte float64
	Timing         Timing // of all layers
}

// Measure measures each of the model's flattened layers in turn. The sample is the model's input, a tensor or a tuple, with the rows of a micro-batch; it stays the caller's.
//
// The model is as it was when Measure returns, after errors too: gradients are put back, running statistics do not move, and parameters that do not exist yet are made for the time their layer is
// measured. Until then neither the model nor the device may be used by others. Measure locks its goroutine to a thread while it runs. It stops between two runs of a layer when ctx ends, with
// ctx's error. A failure in a layer is an *Error.
func Measure(ctx context.Context, model *nn.Sequential, config Config, sample ...*torch.Tensor) (Profile, error) {
	if err := cmp.Or(arg.Context(ctx, "profile"), arg.Given(model, "profile: the model", "an nn.Sequential")); err != nil {
		return Profile{}, err
	}
	layers := model.Layers()
	config, err := config.resolved(layers, sample)
	if err != nil {
		return Profile{}, err
	}
	routes, err := model.SkipRoutes()
	if err != nil {
		return Profile{}, fmt.Errorf("profile: %w", err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer config.trim()
	m := &measurement{
		Config: config, ctx: ctx, now: config.clock(), layers: layers, routes: routes,
		c: torch.NewCtx(torch.Options{Device: config.Device, Threads: config.Threads}), peer: torch.NewCtx(torch.Options{Device: config.Peer, Threads: config.Threads}),
		skips: map[nn.SkipKey]flow{}, found: found{saved: make([]int64, len(layers))},
	}
	defer m.close()
	if err := m.begin(sample); err != nil {
		return Profile{}, err
	}
	for i := range layers {
		if err := ctx.Err(); err != nil {
			return Profile{}, err
		}
		if config.Progress != nil {
			config.Progress(i, len(layers))
		}
		if err := m.layer(i); err != nil {
			return Profile{}, err
		}
	}
	if config.Progress != nil {
		config.Progress(len(layers), len(layers))
	}
	return m.profile(), nil
}

// trim returns to the system what the devices have cached while layers were measured: training asks for other sizes.
func (c Config) trim() {
	c.Device.Trim()
	c.Peer.Trim()
}

func (c Config) resolved(layers []nn.NamedLayer, sample []*torch.Tensor) (Config, error) {
	switch {
	case len(layers) == 0:
		return c, errors.New("profile: the model has no layers")
	case len(sample) == 0:
		return c, errors.New("profile: no sample; give the model's input with the rows of a micro-batch")
	}
	if err := cmp.Or(arg.Between("profile", "Threads", c.Threads, 0, torch.MaxThreads), arg.AtLeast("profile", "Warmup", c.Warmup, 0), arg.AtLeast("profile", "Repeats", c.Repeats, 0)); err != nil {
		return c, err
	}
	for i, x := range sample {
		if x == nil || x.Freed() {
			return c, fmt.Errorf("profile: tensor %d of the sample does not exist; keep it until Measure returns", i)
		}
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
		if !f.d.Available() {
			return c, &ConfigError{Of: "profile", Field: f.field, Value: f.d, Problem: fmt.Sprintf("libtorch %s here cannot use it", torch.Version()), Remedy: "want cpu:0, cpu:1, ..."}
		}
	}
	c.Threads, c.Warmup = max(c.Threads, 1), max(c.Warmup, 1)
	if c.Repeats == 0 {
		c.Repeats = 5
	}
	return c, nil
}

// measurement is a Measure that is running.
type measurement struct {
	Config
	ctx    context.Context
	layers []nn.NamedLayer
	routes []nn.SkipRoute
	c      *torch.Ctx // nothing stays in it between layers
	peer   *torch.Ctx

	at     int                 // the layer that is measured
	in     []flow              // its input
	skips  map[nn.SkipKey]flow // stashed so far
	copies copies
	found  found
	now    func() time.Duration
	times  []timed // of all layers, forward and backward

	overwrote []bool // by layer: its input, as it is given
}
