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
	"penstock.example/schedule"
	"penstock.example/torch"
)

// PlanConfig says how a model is to be trained, and on which devices.
type PlanConfig struct {
	Batch    int   // samples of a step
	Chunks   []int // numbers of micro-batches to choose from, which divide Batch
	Threads  []int // numbers of threads of a device to choose from
	Stages   int   // devices of the pipeline; 0 is any number
	Wishes   plan.Options
	Machine  plan.Machine // not with Devices
	Devices  []PlanDevice // of this process, by name; nil is the CPU devices of Machine
	Links    []plan.Link  // between Devices
	Predicts bool         // Machine is not this one: no step is planned with a pipe

	Pipe      pipe.Config // its Seed, Autocast and DeferredBatchNorm
	Optimizer func() (optim.Optimizer, error)
	Slots     int // tensors that the optimizer keeps for each parameter
	Loss      nn.Loss
	Repeats   int
	AtWork    int                  // devices of this machine that work at once; 0 is one
	Clock     func() time.Duration // see profile.Config

	Measuring func(what string) func(layers, of int) // is called before each measurement; it returns profile.Config.Progress
	Note      func(line string)                      // is called with remarks on the search
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
	make     func() (*nn.Sequential, error)
	samples  data.Info
	model    *nn.Sequential
	profiles map[[2]int]*profile.Profile // by rows and threads: a step is planned by the times by which it was searched
	spared   int64                       // bytes taken from each limit, as steps need more than their chains say
	out      ModelPlan
}

// PlanModel measures a model on made-up samples and finds the fastest plan for it: schedule, cut, number of
// micro-batches, threads, and recomputation. The step of the plan is then planned as training plans it,
// so that its peaks are known to the byte; bytes that it lacks are taken from the limits, and the search
// is repeated. make makes the model, without weights. It blocks until it is done, and fails with
// ctx.Err(). If no plan fits the error is a *plan.MemoryError with limits that will do. Wrong settings are an
// *arg.ConfigError.
func PlanModel(ctx context.Context, make func() (*nn.Sequential, error), samples data.Info,
	c PlanConfig) (*ModelPlan, error) {
	p := &planning{PlanConfig: c, make: make, samples: samples, profiles: map[[2]int]*profile.Profile{}}
	var err error
	if p.model, err = make(); err != nil {
		return nil, err
	}
	if c.Devices != nil {
		p.Machine = machineOf(c.Devices, slices.Max(c.Threads), c.Links)
	}
	p.Wishes.Batch, p.Wishes.Devices, p.Wishes.State = c.Batch, c.Stages, c.Slots
	if n := len(p.model.Layers()); c.Stages > n {
		return nil, &arg.ConfigError{Of: "train", Field: "Stages", Value: c.Stages,
			Problem: fmt.Sprintf("the model has %d layers", n),
			Remedy:  "want at most as many"}
	}
	for _, n := range c.Chunks {
		if c.Batch%n != 0 {
			return nil, &arg.ConfigError{Of: "train", Field: "Chunks", Value: n,
				Remedy: fmt.Sprintf("want a divisor of the %d rows of a batch", c.Batch)}
		}
	}
	if err := p.checkState(); err != nil {
		return nil, err
	}
	if err := p.measure(ctx); err != nil {
		return nil, err
	}
	if err := p.search(ctx); err != nil {
		return nil, err
	}
	p.out.Machine, p.out.Wishes = p.Machine, p.Wishes
	return &p.out, nil
}

// machineOf is devices as a search has them. A GPU may hold no more than is free on the fullest GPU of its
// kind.
func machineOf(list []PlanDevice, threads int, links []plan.Link) plan.Machine {
	m := plan.Machine{Links: links}
	for _, d := range list {
		free := d.Free
		for _, o := range list {
			if o.kind() == d.kind() {
				free = min(free, o.Free)
			}
		}
		m.Devices = append(m.Devices, plan.Device{Name: d.String(), Bytes: free, Threads: threads})
	}
	return m
}

// checkState refuses limits that parameters, gradients and the optimizer's state exceed, before anything is
// measured.
func (p *planning) checkState() error {
	bytes := func(m nn.Module) (n int64) {
		for _, s := range nn.State(m) { // a parameter that layers share counts once
			if n += s.Bytes(); s.Trainable() {
				n += int64(1+p.Slots) * s.Bytes()
			}
		}
		return n
	}
	one := p.Machine.Largest(p.Wishes.Limit)
	devices := int64(cmp.Or(p.Stages, p.Machine.Parts(slices.Min(p.Threads))))
	what, takes, who, has := "", bytes(p.model), "all devices together", one*devices
	for _, l := range p.model.Layers() {
		if n := bytes(l.Layer); n > one {
			what, takes, who, has = fmt.Sprintf(" of layer %q", l.Name), n, "a device", one
			break
		}
	}
	if one == 0 || takes <= has {
		return nil
	}
	return &arg.ConfigError{Of: "train", Field: "Limit", Value: one, Remedy: "want larger limits",
		Problem: fmt.Sprintf("parameters, gradients and the optimizer's state%s take %s, and %s may have %s",
			what, arg.Size(takes), who, arg.Size(has))}
}

// measure measures the model for each number of micro-batches and of threads, on a device of each kind.
// The fewest rows come first: where a unit alone takes more than any device may hold, more rows are not
// measured.
func (p *planning) measure(ctx context.Context) error {
	kinds := map[string]torch.Device{"": torch.CPU(0)}
	order := []string{""}
	if p.Devices != nil {
		clear(kinds)
		order = nil
	}
	for _, d := range p.Devices {
		if _, known := kinds[d.kind()]; !known {
			kinds[d.kind()], order = d.Device, append(order, d.kind())
		}
	}
	took := map[string]float64{}
	var measured []plan.Costs
	var unitsOf [][]int
	chunks := slices.Sorted(slices.Values(p.Chunks))
	slices.Reverse(chunks)
	for i, n := range chunks {
		rows := p.Batch / n
		for _, threads := range p.Threads {
			for k, kind := range order {
				found, err := p.measureOn(ctx, kinds[kind], rows, threads)
				if err != nil {
					return err
				}
				c := found.Chains[0]
				if len(c.Layers) == 0 {
					return &arg.ConfigError{Of: "train", Field: "Model", Value: "it",
						Remedy: "want something in it trained"}
				}
				p.out.Timing.Spread = max(p.out.Timing.Spread, c.Timing.Spread)
				for _, l := range c.Layers {
					took[kind] += l.Forward + l.Backward
				}
				if k > 0 {
					continue // of the others only the speed counts
				}
				if len(order) == 1 {
					p.profiles[[2]int{rows, threads}] = &found
				}
				one, units := p.withFrozen(found)
				one.Rows, one.Threads = rows, threads
				measured, unitsOf = append(measured, one), append(unitsOf, units)
			}
		}
		last := measured[len(measured)-1]
		if u, bytes, found := last.Oversized(p.Machine, p.Wishes); found && i+1 < len(chunks) {
			p.Note(fmt.Sprintf("micro-batches of more rows are not measured: layer %q alone takes %s with "+
				"%d rows",
				last.Chain.Layers[u].Name, arg.Size(bytes), rows))
			break
		}
	}
	p.out.Units = unitsOf[len(unitsOf)-1]
	for i, m := range measured {
		if slices.Equal(unitsOf[i], p.out.Units) {
			p.out.Profile.Measured = append(p.out.Profile.Measured, m)
		} else {
			p.Note(fmt.Sprintf("micro-batches of %d rows are left out: other layers of them are one unit",
				m.Rows))
		}
	}
	slices.SortStableFunc(p.out.Profile.Measured, func(a, b plan.Costs) int { return b.Rows - a.Rows })
	for i, d := range p.Devices {
		if d.kind() != order[0] && took[d.kind()] > 0 {
			p.Machine.Devices[i].Speed = took[order[0]] / took[d.kind()]
		}
	}
	return nil
}

// measureOn measures the model on a device, with micro-batches of a number of rows.
func (p *planning) measureOn(ctx context.Context, on torch.Device, rows, threads int) (profile.Profile,
	error) {
	config := profile.Config{
		Device: on, Peer: on, Threads: threads, MicroBatches: p.Batch / rows, Repeats: p.Repeats,
		Seed:     p.Pipe.Seed,
		Autocast: p.Pipe.Autocast, Balance: []int{len(p.model.Layers())}, Split: true,
		DeferredBatchNorm: p.Pipe.DeferredBatchNorm, Devices: p.AtWork,
		Progress: p.Measuring(fmt.Sprintf("micro-batches of %d rows, threads: %d", rows, threads)),
	}
	if threads == 1 { // of several threads the time of day counts
		config.Clock = p.Clock
	}
	return Measure(ctx, p.model, MadeUp(p.samples, rows, p.Pipe.Seed), MeasureConfig{Batch: rows, Profile: config,
		Loss: p.Loss})
}

// search finds the best plan whose step fits.
func (p *planning) search(ctx context.Context) error {
	const rounds = 8
	for round := 1; ; round++ {
		r, err := plan.Search(ctx, p.out.Profile, p.Machine, p.Wishes)
		if err != nil {
			return err
		}
		if r.Best == nil && r.Short != nil {
			for i := range r.Short.Stages { // the shortages refer to the given limits
				r.Short.Stages[i].Least += p.spared
				r.Short.Stages[i].Limit += p.spared
			}
			return r.Short
		}
		if p.out.Result = *r; r.Best == nil {
			first := r.Schedules[0]
			return &arg.ConfigError{Of: "train", Field: "Schedules", Value: first.Schedule,
				Remedy: "no schedule can be planned: " + first.Lost}
		}
		searched := *r.Best
		if p.out.Searched = &searched; p.Predicts {
			return nil
		}
		err = p.fits(ctx, r.Best)
		var short *plan.MemoryError
		switch {
		case errors.As(err, &short) && round < rounds:
			more := int64(1)
			for _, s := range short.Stages {
				more = max(more, s.Least-s.Limit)
			}
			if !p.spare(more) {
				return err
			}
			p.Note(fmt.Sprintf("the plan found lacks %s; planning again with %s less on each device",
				arg.Bytes(more), arg.Bytes(p.spared)))
			continue
		case err != nil:
			return err
		}
		if step := r.Best.Step; step != searched.Step { // the bounds belong to the searched step
			p.out.LowerBound, p.out.Proved = min(r.LowerBound, step), false
			for i := range p.out.Schedules {
				if o := &p.out.Schedules[i]; o.Plan == r.Best {
					o.LowerBound = min(o.LowerBound, step)
				}
			}
		}
		return nil
	}
}

// spare takes bytes from every limit, unless one would be used up. It reports whether it did.
func (p *planning) spare(bytes int64) bool {
	p.Machine.Devices = slices.Clone(p.Machine.Devices)
	limits := []*int64{&p.Wishes.Limit}
	for i := range p.Machine.Devices {
		limits = append(limits, &p.Machine.Devices[i].Bytes)
	}
	limits = slices.DeleteFunc(limits, func(n *int64) bool { return *n == 0 })
	if slices.ContainsFunc(limits, func(n *int64) bool { return *n <= bytes }) {
		return false
	}
	for _, n := range limits {
		*n -= bytes
	}
	p.spared += bytes
	return len(limits) > 0
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
