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

// PlanConfig says how a model is to be trained, and on which devices.
type PlanConfig struct {
	Batch   int   // samples of a step
	Chunks  []int // numbers of micro-batches to choose from, which divide Batch
	Threads []int // numbers of threads of a device to choose from
	Stages  int   // devices of the pipeline; 0 is any number
	Wishes  plan.Options
	Machine plan.Machine // not with Devices
	Devices []PlanDevice // of this process, by name; nil is the CPU devices of Machine
	Links   []plan.Link  // between Devices

	Pipe      pipe.Config // its Seed, Autocast and DeferredBatchNorm
	Optimizer func() (optim.Optimizer, error)
	Slots     int // tensors that the optimizer keeps for each parameter
	Loss      nn.Loss
	Repeats   int
	AtWork    int                  // devices of this machine that work at once; 0 is one
	Clock     func() time.Duration // see profile.Config

	// is called before each measurement; it returns profile.Config.Progress
	Measuring func(what string) func(layers, of int)
	Note      func(line string) // is called with remarks on the search
}

// PlanDevice is a device of a plan. Devices of one kind and model count as equal.
type PlanDevice struct {
	torch.Device
	torch.Hardware
}

func (d PlanDevice) kind() string { return strings.TrimSpace(d.Kind.String() + " " + d.Hardware.Model) }

// ModelPlan is the fastest plan of a model.
type ModelPlan struct {
	plan.Result
	// Searched is Best before its step was planned with a pipe. It has the units of Profile.
	Searched *plan.Candidate
	Profile  plan.Profile
	Machine  plan.Machine // with what steps take beyond their chains taken from its limits
	Wishes   plan.Options
	Units    []int          // layers of each unit
	Timing   profile.Timing // of the measurements
}

// Layers turns a number of units for each stage into one of layers.
func (p *ModelPlan) Layers(balance []int) (layers []int) {
	at := 0
	for _, n := range balance {
		sum := 0
		for _, units := range p.Units[at : at+n] {
			sum += units
		}
		layers, at = append(layers, sum), at+n
	}
	return layers
}

// planning is a PlanModel that goes on.
type planning struct {
	PlanConfig
	make    func() (*nn.Sequential, error)
	samples data.Info
	model   *nn.Sequential
	// by rows and threads: a step is planned by the times by which it was searched
	profiles map[[2]int]*profile.Profile
	// bytes taken from each limit, as steps need more than their chains say
	spared int64
	out    ModelPlan
}

// PlanModel measures a model on made-up samples and finds the fastest plan for it: schedule, cut, number of
// micro-batches, threads, and recomputation. The step of the plan is then planned as training plans it,
// so that its peaks are known to the byte; bytes that it lacks are taken from the limits, and the search
// is repeated. make makes the model, without weights. It blocks until it is done, and fails with
// ctx.Err(). If no plan fits the error is a *plan.MemoryError with limits that will do. Wrong settings are an
// *arg.ConfigError.
func PlanModel(ctx context.Context, make func() (*nn.Sequential, error), samples data.Info,
	c PlanConfig) (*ModelPlan, error) {
	model, err := make()
	if err != nil {
		return nil, err
	}
	p := &planning{PlanConfig: c, make: make, samples: samples, model: model,
		profiles: map[[2]int]*profile.Profile{}}
	if c.Devices != nil {
		p.Machine = plan.Machine{Links: c.Links}
	}
	for _, d := range c.Devices {
		free := d.Free // a GPU may hold no more than is free on the fullest of its kind
		for _, o := range c.Devices {
			if o.kind() == d.kind() {
				free = min(free, o.Free)
			}
		}
		p.Machine.Devices = append(p.Machine.Devices,
			plan.Device{Name: d.String(), Bytes: free, Threads: slices.Max(c.Threads)})
	}
	p.Wishes.Batch, p.Wishes.Devices, p.Wishes.State = c.Batch, c.Stages, c.Slots
	if err = p.check(); err == nil {
		err = p.measure(ctx)
	}
	if err == nil {
		err = p.search(ctx)
	}
	p.out.Machine, p.out.Wishes = p.Machine, p.Wishes
	return &p.out, err
}

// check refuses, before anything is measured, chunks that do not divide the batch, and limits that
// parameters, gradients and the optimizer's state exceed.
func (p *planning) check() error {
	for _, n := range p.Chunks {
		if p.Batch%n != 0 {
			return &arg.ConfigError{Of: "train", Field: "Chunks", Value: n,
				Remedy: fmt.Sprintf("want a divisor of the %d rows of a batch", p.Batch)}
		}
	}
	need := int64(0)
	for _, s := range nn.State(p.model) { // a parameter that layers share counts once
		if need += s.Bytes(); s.Trainable() {
			need += int64(1+p.Slots) * s.Bytes()
		}
	}
	one := p.Machine.Largest(p.Wishes.Limit)
	all := one * int64(cmp.Or(p.Stages, p.Machine.Parts(slices.Min(p.Threads))))
	if need <= all || one == 0 {
		return nil
	}
	return &arg.ConfigError{Of: "train", Field: "Limit", Value: one, Remedy: "want larger limits",
		Problem: fmt.Sprintf("parameters, gradients and the optimizer's state take %s, and all devices "+
			"together may have %s", arg.Size(need), arg.Size(all))}
}

// measure measures the model for each number of micro-batches and of threads on the first device, and the
// speed of devices of another kind. The fewest rows come first: if a unit alone takes more than any
// device may hold, more rows are not measured.
func (p *planning) measure(ctx context.Context) error {
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
	chunks := slices.Sorted(slices.Values(p.Chunks))
	slices.Reverse(chunks)
	var last profile.Chain
	for i, n := range chunks {
		rows := p.Batch / n
		for _, threads := range p.Threads {
			found, err := p.measureOn(ctx, kinds[0].Device, rows, threads)
			if err != nil {
				return err
			}
			if last = found.Chains[0]; len(last.Layers) == 0 {
				return &arg.ConfigError{Of: "train", Field: "Model", Value: "it",
					Remedy: "want something in it trained"}
			}
			p.out.Timing.Spread = max(p.out.Timing.Spread, last.Timing.Spread)
			if len(kinds) == 1 {
				p.profiles[[2]int{rows, threads}] = &found
			}
			one, units := costs(p.model, found, rows, threads)
			if !slices.Equal(units, p.out.Units) { // other layers of fewer rows are one unit
				*measured = nil
			}
			p.out.Units, *measured = units, append(*measured, one)
		}
		of := (*measured)[len(*measured)-1]
		if u, bytes, found := of.Oversized(p.Machine, p.Wishes); found && i+1 < len(chunks) {
			p.Note(fmt.Sprintf("micro-batches of more rows are not measured: layer %q alone takes %s with "+
				"%d rows", of.Chain.Layers[u].Name, arg.Size(bytes), rows))
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

// stepTime is the time of all layers forward and backward.
func stepTime(c profile.Chain) (micros float64) {
	for _, l := range c.Layers {
		micros += l.Forward + l.Backward
	}
	return micros
}

// measureOn measures the model on a device, with micro-batches of a number of rows.
func (p *planning) measureOn(ctx context.Context, on torch.Device, rows, threads int) (profile.Profile,
	error) {
	config := profile.Config{
		Device: on, Peer: on, Threads: threads, MicroBatches: p.Batch / rows, Repeats: p.Repeats,
		Loss: p.Loss, Seed: p.Pipe.Seed, Autocast: p.Pipe.Autocast, Balance: []int{len(p.model.Layers())}, Split: true,
		DeferredBatchNorm: p.Pipe.DeferredBatchNorm, Devices: p.AtWork,
		Progress: p.Measuring(fmt.Sprintf("micro-batches of %d rows, threads: %d", rows, threads)),
	}
	if threads == 1 { // of several threads the time of day counts
		config.Clock = p.Clock
	}
	return Measure(ctx, p.model, MadeUp(p.samples, rows, p.Pipe.Seed),
		MeasureConfig{Batch: rows, Profile: config})
}

// costs is a measured model as plans have it, and the layers of each unit. Frozen layers before the first
// trained one run once and hold nothing for a backward. A profile's chain begins after them, or has them in a
// unit with later layers; a plan may cut between any of them.
func costs(model *nn.Sequential, found profile.Profile, rows, threads int) (plan.Costs, []int) {
	c, layers := found.Chains[0], model.Layers()
	front := max(slices.IndexFunc(layers,
		func(l nn.NamedLayer) bool { return len(nn.Params(l.Layer)) > 0 }), 0)
	passed := 0 // frozen layers before the chain
	for _, n := range c.Units[:c.Prologue] {
		passed += n
	}
	units := append(slices.Repeat([]int{1}, front), c.Units[c.Prologue:]...)
	units[front] -= front - passed
	out := plan.Costs{Rows: rows, Threads: threads, Chain: c.Chain, Sent: []int64{c.Given}}
	at := 0
	for _, n := range units {
		held := int64(0) // buffers and parameters that are not trained
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
	if front == 0 {
		out.Sent = nil // the chain has them
		return out, units
	}
	out.Chain.Input, out.Chain.Layers = c.Given, nil
	rest := slices.Clone(c.Layers)
	for i, l := range found.Layers[:front] {
		micros := 1e6 * l.Forward
		unit := remat.Layer{Name: l.Name, Forward: micros, ForwardNoGrad: micros, ForwardTmp: c.ProloguePeak}
		switch {
		case i >= passed: // in a unit with later layers
			unit.ForwardTmp = rest[0].Saved + rest[0].ForwardTmp
			rest[0].Forward = max(rest[0].Forward-micros, 0)
			rest[0].ForwardNoGrad = max(rest[0].ForwardNoGrad-micros, 0)
		case i == passed-1: // its output is the chain's input
			unit.Output, unit.Saved, unit.ForwardTmp = c.Input, c.Input, max(c.ProloguePeak-c.Input, 0)
		}
		unit.ForwardNoGradTmp = unit.ForwardTmp
		out.Chain.Layers = append(out.Chain.Layers, unit)
	}
	if rest[0].Name = found.Layers[front].Name; units[front] > 1 {
		rest[0].Name += ".." + found.Layers[front+units[front]-1].Name
	}
	out.Chain.Layers = append(out.Chain.Layers, rest...)
	later := func(list []remat.Carry) (out []remat.Carry) { // numbered by units of the model
		for _, k := range list {
			if k.To += front; k.From >= 0 {
				k.From += front
			} else if passed > 0 { // the chain's input
				k.From = passed - 1
			}
			out = append(out, k)
		}
		return out
	}
	out.Chain.Carries, out.Chain.GradientCarries = later(c.Carries), later(c.GradientCarries)
	if c.Deferred != nil {
		out.Chain.Deferred = append(make([]remat.Deferred, front), c.Deferred...)
	}
	return out, units
}

// search finds the best plan whose step fits.
func (p *planning) search(ctx context.Context) error {
	for round := 1; ; round++ {
		r, err := plan.Search(ctx, p.out.Profile, p.Machine, p.Wishes)
		switch {
		case err != nil:
			return err
		case r.Best == nil && r.Short != nil:
			for i := range r.Short.Stages { // the shortages refer to the given limits
				r.Short.Stages[i].Least += p.spared
				r.Short.Stages[i].Limit += p.spared
			}
			return r.Short
		case r.Best == nil:
			return &arg.ConfigError{Of: "train", Field: "Schedules", Value: r.Schedules[0].Schedule,
				Remedy: "no schedule can be planned: " + r.Schedules[0].Lost}
		}
		searched := *r.Best
		p.out.Result, p.out.Searched = *r, &searched
		err = p.fits(ctx, r.Best)
		var short *plan.MemoryError
		if errors.As(err, &short) && round < 8 {
			more := int64(1)
			for _, s := range short.Stages {
				more = max(more, s.Least-s.Limit)
			}
			if p.spare(more) {
				p.Note(fmt.Sprintf("the plan found lacks %s; planning again with %s less on each device",
					arg.Bytes(more), arg.Bytes(p.spared)))
				continue
			}
		}
		if step := r.Best.Step; step != searched.Step { // the bounds belong to the searched one
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

// spare takes bytes from every limit, and reports whether something is left of each.
func (p *planning) spare(bytes int64) bool {
	p.spared += bytes
	p.Machine.Devices = slices.Clone(p.Machine.Devices)
	limits := []*int64{&p.Wishes.Limit}
	for i := range p.Machine.Devices {
		limits = append(limits, &p.Machine.Devices[i].Bytes)
	}
	left := true
	for _, n := range limits {
		if *n > 0 {
			*n -= bytes
			left = left && *n > 0
		}
	}
	return left
}

// fits plans the step of a plan that was found with a pipe, as training does, and gives it the peaks and
// the time of that step. It returns a *plan.MemoryError where that takes more than the limits.
func (p *planning) fits(ctx context.Context, best *plan.Candidate) (err error) {
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
		best.Limits[w] += p.spared * int64(min(best.Limits[w], 1))
		devices[w].SetLimit(best.Limits[w])
		defer devices[w].SetLimit(0)
	}
	for _, w := range workers {
		config.Devices = append(config.Devices, devices[w])
	}
	if config.Optimizer, err = p.Optimizer(); err != nil {
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
	made := opened.Plan()
	for w := range best.Devices {
		best.Peaks[w] = made.Devices[w].Peak
	}
	if made.Program.String() == best.Planned.Program.String() {
		made.Hold(best.Timeline)
	} else {
		line, _, err := made.TimelineOver(best.Links)
		if err != nil {
			return err
		}
		best.Run(line)
	}
	best.Planned = made
	return nil
}
