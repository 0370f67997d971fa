package train

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"penstock.example/data"
	"penstock.example/internal/arg"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/plan"
	"penstock.example/profile"
	"penstock.example/remat"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// PlanConfig describes the training to plan, and the devices.
type PlanConfig struct {
	Batch   int          // samples of a step
	Chunks  []int        // candidate numbers of micro-batches; they divide Batch; nil is 1, 2, 4, 8 and 16
	Threads []int        // candidate numbers of threads of a device
	Stages  int          // devices of the pipeline; 0 is any number
	Wishes  plan.Options // of the search; its State, Batch and Devices are set by PlanModel
	Machine plan.Machine // not used with Devices
	Devices []PlanDevice // of this process; nil is the CPU devices of Machine

	Pipe      pipe.Config  // only Seed, Autocast and DeferredBatchNorm are used
	Optimizer string       // the name, for optim.New
	Update    optim.Config // without its LR
	Loss      nn.Loss
	Repeats   int                  // see profile.Config
	AtWork    int                  // devices of this machine that work at once; 0 is one
	Clock     func() time.Duration // see profile.Config

	Measuring func(what string) func(layers, of int) // returns the profile.Config.Progress of a measurement
	Note      func(line string)                      // is called with remarks on the search
}

// PlanDevice is a device of a plan. Devices of one kind and hardware model count as equal.
type PlanDevice struct {
	torch.Device
	torch.Hardware
}

func (d PlanDevice) kind() string { return strings.TrimSpace(d.Kind.String() + " " + d.Hardware.Model) }

// ModelPlan is the fastest plan of a model.
type ModelPlan struct {
	plan.Result
	Searched *plan.Candidate // Best as the search found it, before its step was planned
	Profile  plan.Profile
	Machine  plan.Machine // of the last search, with limits reduced as PlanModel describes
	Wishes   plan.Options
	Units    []int          // layers of each unit
	Timing   profile.Timing // of the measurements
}

// Layers converts numbers of units, by stage, to numbers of layers.
func (p *ModelPlan) Layers(balance []int) (layers []int) {
	first := 0
	for _, n := range balance {
		sum := 0
		for _, unitLayers := range p.Units[first : first+n] {
			sum += unitLayers
		}
		layers, first = append(layers, sum), first+n
	}
	return layers
}

// modelPlanner holds the state of PlanModel.
type modelPlanner struct {
	PlanConfig
	make     func() (*nn.Sequential, error)
	samples  data.Info
	model    *nn.Sequential
	profiles map[[2]int]*profile.Profile // by rows and threads, for planning the step
	reserved int64                       // bytes subtracted from each limit
	out      ModelPlan
}

// PlanModel measures a model on random samples and finds the fastest plan for it: schedule, cut, number of
// micro-batches, threads, and recomputation. It then plans the step as training does, so its peaks are
// exact. If the step lacks memory, PlanModel reduces the limits by the shortage and searches again.
//
// make makes the model, without weights. PlanModel fails with ctx.Err() if ctx ends. If no plan fits the
// error is a *plan.MemoryError with sufficient limits. Invalid settings are an *arg.ConfigError.
func PlanModel(ctx context.Context, make func() (*nn.Sequential, error), samples data.Info,
	c PlanConfig) (*ModelPlan, error) {
	model, err := make()
	if err != nil {
		return nil, err
	}
	p := &modelPlanner{PlanConfig: c, make: make, samples: samples, model: model,
		profiles: map[[2]int]*profile.Profile{}}
	p.Update.LR = 1 // any valid one
	if p.Wishes.State, err = optim.Slots(p.Optimizer, p.Update); err != nil {
		return nil, err
	}
	for n := 1; n <= min(p.Batch, 16) && c.Chunks == nil; n *= 2 {
		if p.Batch%n == 0 {
			p.Chunks = append(p.Chunks, n)
		}
	}
	for _, n := range p.Chunks {
		if p.Batch%n != 0 {
			return nil, &arg.ConfigError{Of: "train", Field: "Chunks", Value: n,
				Remedy: fmt.Sprintf("want a divisor of the %d rows of a batch", p.Batch)}
		}
	}
	if c.Devices != nil {
		p.Machine = plan.Machine{}
	}
	if len(c.Devices) > 1 && c.Devices[0].Kind != torch.KindCPU {
		slowest, err := measureCopies(c.Devices)
		if err != nil {
			return nil, fmt.Errorf("train: measuring the links between devices: %w", err)
		}
		p.Machine.Links = []plan.Link{slowest}
	}
	for _, d := range c.Devices {
		free := d.Free // the least free memory of its kind
		for _, o := range c.Devices {
			if o.kind() == d.kind() {
				free = min(free, o.Free)
			}
		}
		p.Machine.Devices = append(p.Machine.Devices,
			plan.Device{Name: d.String(), Bytes: free, Threads: slices.Max(c.Threads)})
	}
	p.Wishes.Batch, p.Wishes.Devices = c.Batch, c.Stages
	if err = p.checkState(); err == nil {
		err = p.measure(ctx)
	}
	if err == nil {
		err = p.search(ctx)
	}
	p.out.Machine, p.out.Wishes = p.Machine, p.Wishes
	return &p.out, err
}

// checkState returns an error if parameters, gradients and the optimizer's state alone exceed the limits.
func (p *modelPlanner) checkState() error {
	need := int64(0)
	for _, s := range nn.State(p.model) { // a parameter that layers share counts once
		if need += s.Bytes(); s.Trainable() {
			need += int64(1+p.Wishes.State) * s.Bytes()
		}
	}
	limit := p.Machine.Largest(p.Wishes.Limit)
	total := limit * int64(cmp.Or(p.Stages, p.Machine.Parts(slices.Min(p.Threads))))
	if need <= total || limit == 0 {
		return nil
	}
	return &arg.ConfigError{Of: "train", Field: "Limit", Value: limit, Remedy: "want larger limits",
		Problem: fmt.Sprintf("parameters, gradients and the optimizer's state take %s, and all devices "+
			"together may have %s", arg.Size(need), arg.Size(total))}
}

// measure measures the model on the first device for each number of micro-batches and of threads, then
// the speed of other kinds of devices. The fewest rows come first. If a unit alone exceeds every device's
// limit, larger micro-batches are not measured.
func (p *modelPlanner) measure(ctx context.Context) error {
	var kinds []PlanDevice
	for _, d := range p.Devices {
		if !slices.ContainsFunc(kinds, func(k PlanDevice) bool { return k.kind() == d.kind() }) {
			kinds = append(kinds, d)
		}
	}
	if kinds == nil {
		kinds = []PlanDevice{{Device: torch.CPU(0)}}
	}
	measured := &p.out.Profile.Measured
	chunks := slices.SortedFunc(slices.Values(p.Chunks), func(a, b int) int { return b - a })
	var last profile.Chain
	for i, n := range chunks {
		rows := p.Batch / n
		for _, threads := range p.Threads {
			found, err := p.measureOn(ctx, kinds[0].Device, rows, threads)
			if err != nil {
				return err
			}
			if last = found.Chains[0]; len(last.Layers) == 0 {
				return &arg.ConfigError{Of: "train", Field: "Model", Value: "frozen",
					Remedy: "want a trained layer"}
			}
			p.out.Timing.Spread = max(p.out.Timing.Spread, last.Timing.Spread)
			if len(kinds) == 1 {
				p.profiles[[2]int{rows, threads}] = &found
			}
			costs, units := unitCosts(p.model, found, rows, threads)
			if !slices.Equal(units, p.out.Units) { // costs of other units cannot be compared
				*measured = nil
			}
			p.out.Units, *measured = units, append(*measured, costs)
		}
		costs := (*measured)[len(*measured)-1]
		if u, bytes, found := costs.Oversized(p.Machine, p.Wishes); found && i+1 < len(chunks) {
			p.Note(fmt.Sprintf("micro-batches of more rows are not measured: layer %q alone takes %s with "+
				"%d rows", costs.Chain.Layers[u].Name, arg.Size(bytes), rows))
			break
		}
	}
	slices.SortStableFunc(*measured, func(a, b plan.Costs) int { return b.Rows - a.Rows })
	for _, kind := range kinds[1:] {
		found, err := p.measureOn(ctx, kind.Device, (*measured)[0].Rows, p.Threads[len(p.Threads)-1])
		if err != nil {
			return err
		}
		for i, d := range p.Devices {
			if d.kind() == kind.kind() {
				p.Machine.Devices[i].Speed = stepTime(last) / stepTime(found.Chains[0])
			}
		}
	}
	return nil
}

func stepTime(c profile.Chain) (micros float64) {
	for _, l := range c.Layers {
		micros += l.Forward + l.Backward
	}
	return micros
}

func (p *modelPlanner) measureOn(ctx context.Context, on torch.Device, rows, threads int) (profile.Profile,
	error) {
	config := profile.Config{
		Device: on, Peer: on, Threads: threads, MicroBatches: p.Batch / rows, Repeats: p.Repeats,
		Loss: p.Loss, Seed: p.Pipe.Seed, Autocast: p.Pipe.Autocast, Balance: []int{len(p.model.Layers())},
		Split: true, DeferredBatchNorm: p.Pipe.DeferredBatchNorm, Devices: p.AtWork,
		Progress: p.Measuring(fmt.Sprintf("micro-batches of %d rows, threads: %d", rows, threads)),
	}
	if threads == 1 { // several threads are timed by wall clock
		config.Clock = p.Clock
	}
	return Measure(ctx, p.model, MadeUp(p.samples, rows, p.Pipe.Seed),
		MeasureConfig{Batch: rows, Profile: config})
}

// unitCosts converts a measured model to costs of units, and returns the number of layers in each unit.
// Frozen layers before the first trained one run once and save nothing for backward. In the profile they
// precede the chain or are merged into its first unit. In the result each is a unit, so a plan may cut
// between them.
func unitCosts(model *nn.Sequential, found profile.Profile, rows, threads int) (plan.Costs, []int) {
	c, layers := found.Chains[0], model.Layers()
	frozen := max(slices.IndexFunc(layers,
		func(l nn.NamedLayer) bool { return len(nn.Params(l.Layer)) > 0 }), 0)
	before := 0 // frozen layers before the chain
	for _, n := range c.Units[:c.Prologue] {
		before += n
	}
	units := append(slices.Repeat([]int{1}, frozen), c.Units[c.Prologue:]...)
	units[frozen] -= frozen - before
	out := plan.Costs{Rows: rows, Threads: threads, Chain: c.Chain, Sent: []int64{c.InputTuple}}
	at := 0
	for _, n := range units {
		held := int64(0) // buffers and frozen parameters
		for _, l := range layers[at : at+n] {
			for _, p := range nn.State(l.Layer) {
				if !p.Trainable() && !p.Shared() {
					held += p.Bytes()
				}
			}
		}
		at += n
		out.Held, out.Sent = append(out.Held, held), append(out.Sent, found.Layers[at-1].Output)
	}
	if frozen == 0 {
		out.Sent = nil // equal to the inputs of the chain's units
		return out, units
	}
	out.Chain.Input, out.Chain.Layers = c.InputTuple, nil
	rest := slices.Clone(c.Layers)
	for i, l := range found.Layers[:frozen] {
		micros := 1e6 * l.Forward
		unit := remat.Layer{Name: l.Name, Forward: micros, ForwardNoGrad: micros, ForwardTmp: c.ProloguePeak}
		switch {
		case i >= before: // merged into the chain's first unit
			unit.ForwardTmp = rest[0].Saved + rest[0].ForwardTmp
			rest[0].Forward = max(rest[0].Forward-micros, 0)
			rest[0].ForwardNoGrad = max(rest[0].ForwardNoGrad-micros, 0)
		case i == before-1: // its output is the chain's input
			unit.Output, unit.Saved, unit.ForwardTmp = c.Input, c.Input, max(c.ProloguePeak-c.Input, 0)
		}
		unit.ForwardNoGradTmp = unit.ForwardTmp
		out.Chain.Layers = append(out.Chain.Layers, unit)
	}
	if rest[0].Name = found.Layers[frozen].Name; units[frozen] > 1 {
		rest[0].Name += ".." + found.Layers[frozen+units[frozen]-1].Name
	}
	out.Chain.Layers = append(out.Chain.Layers, rest...)
	renumbered := func(list []remat.Carry) (out []remat.Carry) { // From and To count the frozen units too
		for _, k := range list {
			if k.To += frozen; k.From >= 0 {
				k.From += frozen
			} else if before > 0 { // the chain's input
				k.From = before - 1
			}
			out = append(out, k)
		}
		return out
	}
	out.Chain.Carries, out.Chain.GradientCarries = renumbered(c.Carries), renumbered(c.GradientCarries)
	if c.Deferred != nil {
		out.Chain.Deferred = append(make([]remat.Deferred, frozen), c.Deferred...)
	}
	return out, units
}

// search finds the best plan whose step fits.
func (p *modelPlanner) search(ctx context.Context) error {
	for round := 1; ; round++ {
		r, err := plan.Search(ctx, p.out.Profile, p.Machine, p.Wishes)
		switch {
		case err != nil:
			return err
		case r.Best == nil && r.Short != nil:
			for i := range r.Short.Stages { // report the caller's limits
				r.Short.Stages[i].Least += p.reserved
				r.Short.Stages[i].Limit += p.reserved
			}
			return r.Short
		case r.Best == nil:
			return &arg.ConfigError{Of: "train", Field: "Schedules", Value: r.Schedules[0].Schedule,
				Remedy: "no schedule can be planned: " + r.Schedules[0].Lost}
		}
		searched := *r.Best
		p.out.Result, p.out.Searched = *r, &searched
		err = p.planStep(ctx, r.Best)
		var short *plan.MemoryError
		if errors.As(err, &short) && round < 8 {
			more := int64(1)
			for _, s := range short.Stages {
				more = max(more, s.Least-s.Limit)
			}
			if p.reserve(more) {
				p.Note(fmt.Sprintf("the plan found lacks %s; planning again with %s less on each device",
					arg.Bytes(more), arg.Bytes(p.reserved)))
				continue
			}
		}
		if step := r.Best.Step; step != searched.Step { // the bounds are of searched.Step
			p.out.LowerBound, p.out.Proved = min(r.LowerBound, step), false
			for i := range p.out.Schedules {
				if o := &p.out.Schedules[i]; o.Plan == r.Best {
					o.LowerBound = min(o.LowerBound, step)
				}
			}
		}
		return err
	}
}

// reserve subtracts bytes from every limit, and reports whether all limits are still positive.
func (p *modelPlanner) reserve(bytes int64) bool {
	p.reserved += bytes
	p.Machine.Devices = slices.Clone(p.Machine.Devices)
	positive := true
	lower := func(limit *int64) {
		if *limit > 0 { // 0 is no limit
			*limit -= bytes
			positive = positive && *limit > 0
		}
	}
	lower(&p.Wishes.Limit)
	for i := range p.Machine.Devices {
		lower(&p.Machine.Devices[i].Bytes)
	}
	return positive
}

// planStep plans the step of best with a pipe, as training does, and sets its peaks and its time.
func (p *modelPlanner) planStep(ctx context.Context, best *plan.Candidate) (err error) {
	named, err := schedule.Named(best.Schedule)
	if err != nil {
		return err
	}
	workers, err := named.Workers(len(best.Devices), best.Virtual)
	if err != nil {
		return err
	}
	config := p.Pipe
	config.Balance, config.Chunks, config.Threads = p.out.Layers(best.Balance), best.MicroBatches,
		max(best.Threads, 1)
	config.Schedule, config.Checkpoint, config.Devices = named.Generate, pipe.Optimal, nil
	config.Profile = p.profiles[[2]int{best.Rows, best.Threads}]
	devices := make([]torch.Device, len(best.Devices))
	for w, name := range best.Devices {
		devices[w] = torch.CPU(w)
		if at := slices.IndexFunc(p.Devices, func(d PlanDevice) bool { return d.String() == name }); at >= 0 {
			devices[w] = p.Devices[at].Device
		}
		if best.Limits[w] > 0 {
			best.Limits[w] += p.reserved
		}
		devices[w].SetLimit(best.Limits[w])
		defer devices[w].SetLimit(0)
	}
	for _, w := range workers {
		config.Devices = append(config.Devices, devices[w])
	}
	if config.Optimizer, err = optim.New(p.Optimizer, p.Update); err != nil {
		return err
	}
	defer config.Optimizer.Close()
	model, err := p.make()
	if err != nil {
		return err
	}
	opened, err := pipe.Open(model, config)
	if err != nil {
		return err
	}
	defer nn.Free(model)
	defer opened.Close()
	loop := Loop{Pipe: opened, Optimizer: config.Optimizer, Loss: p.Loss}
	if err := loop.PlanMemory(ctx, MadeUp(p.samples, p.Batch, p.Pipe.Seed), p.Batch); err != nil {
		return err
	}
	planned := opened.Plan()
	for w := range best.Devices {
		best.Peaks[w] = planned.Devices[w].Peak
	}
	if planned.Program.String() == best.Planned.Program.String() {
		planned.Hold(best.Timeline)
	} else {
		line, _, err := planned.TimelineOver(best.Links)
		if err != nil {
			return err
		}
		best.Run(line)
	}
	best.Planned = planned
	return nil
}
