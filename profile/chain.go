package profile

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"

	"penstock/internal/arg"
	"penstock/nn"
	"penstock/remat/plan"
	"penstock/segment"
	"penstock/torch"
)

// ChainConfig says how chains are measured. The zero value is that of Config, without a loss.
type ChainConfig struct {
	Config
	// Balance cuts the model into stages, which get a chain each. Nil is one.
	Balance []int
	// Loss follows the last layer; Targets are its, with the rows of the sample.
	Loss    nn.Loss
	Targets []*torch.Tensor
	// LossUnit makes the loss the last layer of the last chain, whose backward may come long after its forward, as in a pipe. Without it the loss is the chain's Loss, forward and backward at once.
	LossUnit bool
	// InputGrad says that the sample's own gradient is wanted.
	InputGrad bool
	// MostUnits is the most units that a model is cut into. Beyond it cuts inside of skip connections are given up first. 0 is 400.
	MostUnits int
	// DeferredBatchNorm measures forwards that gather the statistics of a mini-batch; see nn.Deferred.
	DeferredBatchNorm bool
}

// Chain is a model, or a stage of one, as package plan knows it: a layer of it is a unit of one or more of the model's layers.
type Chain struct {
	plan.Chain            // of the first micro-batch of a step: gradients of parameters are made
	Later      plan.Chain // of another one: they are there

	// Statistics is the bytes that the first forward of all units gathers for a mini-batch's batch norms (DeferredBatchNorm), and that stay to its end.
	Statistics int64
	// Units is the number of layers in each unit, for segment.Config; with ChainConfig.LossUnit the last unit of the last chain is the layer nn.LossLayer. The first Prologue of them have no backward: nothing in them is trained and nobody wants a gradient of what they are given. They
	// are run once, and are not layers of the chain.
	Units    []int
	Prologue int
	// ProloguePeak is the most bytes beside what the stage is sent while the prologue runs.
	ProloguePeak int64
	// Given is the bytes of the tuple that the stage is sent, Gives of the one that it gives.
	Given, Gives int64
	// SkipsIn are the bytes of skips that the stage is sent, SkipsOut of those that it sends.
	SkipsIn, SkipsOut int64
	Merged            []Merge
	Spread            []Spread // by layer of the chain
	Timing            Timing   // of all of them
}

// Merge says why a layer is in one unit with the one before it.
type Merge struct{ Layer, Reason string }

// MeasureChain measures a model, or its stages, for rematerialisation: it joins layers that a plan gains nothing from keeping apart, and then runs each unit by the operations of a plan, forward without and with
// gradients and backward, reading every byte from the device's account.
//
// Layers are joined where one works in place on what the one before has made, where one returns a view of it, and where nobody saves what is between them for backward and it is more than what
// the one before saves: to hold that at a border would cost memory that plain training does not need.
//
// Then the units are timed, in passes over all of them that are like training steps; see passes.go.
//
// All that is said of Measure about the model, the sample, the device and errors holds. Only one unit has to fit at a time: passes over several hold at most 256 MiB beside temporaries, and under a limit of
// the device at most half of what is free. Gradients are measured with ones for gradients of the output, in the layout that
// the unit behind gives them.
func MeasureChain(ctx context.Context, model *nn.Sequential, config ChainConfig, sample ...*torch.Tensor) (chains []Chain, err error) {
	if err := cmp.Or(arg.Context(ctx, "profile"), arg.Given(model, "profile: the model", "an nn.Sequential")); err != nil {
		return nil, err
	}
	layers := model.Layers()
	if config.Config, err = config.Config.resolved(layers, sample); err != nil {
		return nil, err
	}
	if err := config.check(len(layers)); err != nil {
		return nil, err
	}
	routes, err := model.SkipRoutes()
	if err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer config.trim()
	units, merged, err := config.scan(ctx, layers, routes, sample)
	if err != nil {
		return nil, err
	}
	p := &prober{ChainConfig: config, ctx: ctx, now: config.clock(), layers: layers, routes: routes, c: torch.NewCtx(torch.Options{Device: config.Device, Threads: config.Threads})}
	defer p.close()
	err = attempt(theSample, func() error {
		for _, x := range sample {
			p.xs = append(p.xs, p.c.Keep(p.c.Detach(x)))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	first := 0
	if config.Loss != nil && config.LossUnit {
		last := len(config.Balance) - 1
		config.Balance, units[last] = slices.Clone(config.Balance), append(units[last], 1)
		config.Balance[last]++
		p.layers = append(slices.Clone(layers), nn.LossLayer())
	}
	for stage, n := range config.Balance {
		chain, err := p.stage(first, first+n, units[stage], stage == len(config.Balance)-1)
		if err != nil {
			return nil, err
		}
		for _, m := range merged {
			if i := slices.IndexFunc(layers, func(l nn.NamedLayer) bool { return l.Name == m.Layer }); first <= i && i < first+n {
				chain.Merged = append(chain.Merged, m)
			}
		}
		chains = append(chains, chain)
		first += n
	}
	if config.Progress != nil {
		config.Progress(len(layers), len(layers))
	}
	return chains, nil
}

func (c *ChainConfig) check(layers int) error {
	if c.Balance == nil {
		c.Balance = []int{layers}
	}
	if err := cmp.Or(arg.Balance("profile", c.Balance, layers), arg.AtLeast("profile", "MostUnits", c.MostUnits, 0)); err != nil {
		return err
	}
	switch {
	case c.Loss != nil && len(c.Targets) == 0:
		return &ConfigError{Of: "profile", Field: "Targets", Value: c.Targets, Problem: "there are none for the loss", Remedy: "want those of the sample"}
	case c.Device.Kind != torch.KindCPU:
		return &ConfigError{Of: "profile", Field: "Device", Value: c.Device, Problem: "its memory is not counted, and a chain is about bytes", Remedy: "want a CPU device"}
	}
	if c.MostUnits == 0 {
		c.MostUnits = 400
	}
	return nil
}

// scan finds the units of each stage.
func (c ChainConfig) scan(ctx context.Context, layers []nn.NamedLayer, routes []nn.SkipRoute, sample []*torch.Tensor) (units [][]int, merged []Merge, err error) {
	quick := c.Config
	quick.BytesOnly = true
	m := &measurement{
		Config: quick, ctx: ctx, now: c.clock(), layers: layers, routes: routes,
		c: torch.NewCtx(torch.Options{Device: c.Device, Threads: c.Threads}), peer: torch.NewCtx(torch.Options{Device: c.Device, Threads: c.Threads}),
		skips: map[nn.SkipKey]flow{}, found: found{saved: make([]int64, len(layers))},
	}
	defer m.close()
	if err := m.begin(sample); err != nil {
		return nil, nil, err
	}
	for i := range layers {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		if err := m.layer(i); err != nil {
			return nil, nil, err
		}
	}
	joined := m.joined()
	first := 0
	most := max(c.MostUnits-len(c.Balance), 1)
	for _, n := range c.Balance {
		joined[first] = "" // a stage begins
		first += n
	}
	coarsen(joined, routes, most)
	first = 0
	for _, n := range c.Balance {
		joined[first] = ""
		var counts []int
		for i := first; i < first+n; i++ {
			if joined[i] == "" {
				counts = append(counts, 0)
			} else {
				merged = append(merged, Merge{layers[i].Name, joined[i]})
			}
			counts[len(counts)-1]++
		}
		units = append(units, counts)
		first += n
	}
	return units, merged, nil
}

// segment cuts a stage.
func (p *prober) segment(first, last int, units []int) (*segment.Segment, error) {
	return segment.New(segment.Config{Layers: p.layers, Routes: p.routes, First: first, Last: last, Units: units, InputGrad: p.inputGrad})
}
