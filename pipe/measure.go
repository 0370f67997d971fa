package pipe

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"

	"penstock.example/internal/engine"
	"penstock.example/internal/stream"
	"penstock.example/nn"
	"penstock.example/plan"
	"penstock.example/profile"
	"penstock.example/torch"
)

// measure measures the model once for each kind of device.
func (r *run) measure(ctx context.Context) ([]profile.Chain, error) {
	out, of := make([]profile.Chain, len(r.p.stages)), map[torch.Kind][]profile.Chain{}
	for i, d := range r.p.cfg.Devices {
		if of[d.Kind] == nil {
			var err error
			if of[d.Kind], err = r.measureOn(ctx, d.Kind); err != nil {
				return nil, err
			}
		}
		out[i] = of[d.Kind][i]
	}
	return out, nil
}

// measureOn measures all stages on the first micro-batch, and on the last one if it has fewer rows.
func (r *run) measureOn(ctx context.Context, kind torch.Kind) (chains []profile.Chain, err error) {
	p := r.p
	device, release, err := p.measuringDevice(kind)
	if err != nil {
		return nil, err
	}
	defer release()
	err = p.exclusively(func(c *torch.Ctx) (err error) {
		defer nn.CopyBuffers(nn.Buffers(p.model))() // some layers change them even when they recompute
		var workers []int
		for _, s := range p.stages {
			workers = append(workers, s.worker)
		}
		c.Synchronize() // a GPU measures on its default stream
		p.idle()
		defer p.idle()
		here := torch.NewCtx(torch.Options{Device: device})
		defer here.Close()
		part := func(values []Value, microBatch int) (list []*torch.Tensor) {
			for _, t := range r.parts[microBatch].views(c, values) {
				if t = c.Detach(t); !t.On(device) {
					t = here.CopyHere(t)
				}
				list = append(list, t)
			}
			return list
		}
		config := profile.Config{
			Device: device, Peer: device, Devices: len(p.mine), Threads: p.cfg.Threads,
			MicroBatches: len(r.parts), Seed: p.cfg.Seed, Extras: r.batch.Extras, Autocast: p.cfg.Autocast,
			Balance: p.cfg.Balance, Workers: workers, Loss: r.loss, Target: part(r.batch.Target, 0),
			LossUnit: true, InputGrad: r.inputGrad, DeferredBatchNorm: p.cfg.DeferredBatchNorm && r.training,
			Split: p.unmeasuredProblem(len(r.parts)).Splits(), LiftLimit: true,
		}
		if last := len(r.parts) - 1; r.fullMicroBatches() <= last {
			config.Fewer, config.FewerTarget = part(r.batch.Input, last), part(r.batch.Target, last)
		}
		if kind == p.cfg.Devices[0].Kind { // Config.Profile has the first stage's kind
			config.Known = p.cfg.Profile
		}
		measured, err := profile.Measure(ctx, p.model, config, part(r.batch.Input, 0)...)
		chains = measured.Chains
		return err
	})
	return chains, err
}

// idle blocks until the default streams of this process's GPUs are idle.
func (p *Pipe) idle() {
	for _, w := range p.mine {
		if d := p.workers[w].device; d.Kind != torch.KindCPU {
			stream.End(stream.Host{}, engine.DefaultStream(d))
		}
	}
}

// exclusively runs f on the first worker of the process, within a run that was entered. The other
// workers wait, so that the accounts of the devices change through f alone.
func (p *Pipe) exclusively(f func(c *torch.Ctx) error) error {
	var arrived sync.WaitGroup
	done := make(chan struct{})
	arrived.Add(len(p.mine))
	return errors.Join(p.onWorkers(func(worker int, c *torch.Ctx) error {
		arrived.Done()
		if worker != p.mine[0] {
			<-done
			return nil
		}
		defer close(done)
		arrived.Wait()
		defer engine.OwnPeak(p.workers[worker].device) // what f allocates is no part of a step
		return f(c)
	})...)
}

// measuringDevice returns the device of a kind to measure on. For several stages on CPUs it is an
// unused device with the highest of the stages' limits, otherwise the first stage's device here.
func (p *Pipe) measuringDevice(kind torch.Kind) (d torch.Device, release func(), err error) {
	var limits []int64
	for _, s := range slices.Backward(p.stages) {
		if s.Here && s.Device.Kind == kind {
			d, limits = s.Device, append(limits, s.Device.Memory().Limit)
		}
	}
	switch {
	case kind == torch.KindCPU && len(p.stages) > 1 && slices.Contains(limits, 0):
		return profile.IdleDevice(0)
	case kind == torch.KindCPU && len(p.stages) > 1:
		return profile.IdleDevice(slices.Max(append(limits, 0)))
	case limits == nil:
		err = errors.New("process 0 measures for all and has no GPU; give it a GPU stage, or avoid optimal")
	}
	return d, func() {}, err
}

// unmeasuredProblem is a step's planning problem without costs and memory.
func (p *Pipe) unmeasuredProblem(microBatches int) plan.Problem {
	out := plan.Problem{MicroBatches: microBatches, Schedule: p.cfg.Schedule}
	out.Skips, out.Ties = crossings(p.stages)
	for _, name := range p.cfg.DeviceNames() {
		out.Devices = append(out.Devices, plan.ProblemDevice{Name: name})
	}
	for i, s := range p.stages {
		policy := plan.Policy(p.cfg.policies[i])
		out.Stages = append(out.Stages, plan.Stage{Device: s.worker, Layers: len(s.Layers), Policy: policy})
	}
	return out
}

// problem is the planning problem of a step with this batch, for the memory that is available now.
func (r *run) problem(chains []profile.Chain) plan.Problem {
	p := r.p
	out := p.unmeasuredProblem(len(r.parts))
	for i, s := range p.stages {
		if p.cfg.policies[i] != Optimal {
			continue
		}
		c, given := chains[i], r.available[i]
		d := &out.Devices[s.worker]
		d.Live, d.Limit = given.Live, plan.LowerLimit(d.Limit, given.Limit)
		out.Stages[i].Costs = costs(c)
		if c.Fewer != nil {
			fewer := costs(*c.Fewer)
			out.Stages[i].Fewer, out.Larger = &fewer, r.fullMicroBatches()
		}
		memory := given.Memory
		if r.loss == nil && r.last(i) {
			// the whole batch's outputs, beside first the micro-batches' outputs, later the gradients
			memory.Outputs = 2 * int64(len(r.parts)) * c.OutputTuple
			if r.batch.Within != nil {
				memory.Outputs = c.OutputTuple + cmp.Or(r.batch.LossBytes, 4*c.OutputTuple)
			}
		}
		out.Stages[i].Memory = memory
	}
	return out
}

// available is the memory that a stage has.
type available struct {
	Live, Limit int64 // of the device
	plan.Memory       // without Outputs
}

// min is the memory that two replicas both have. The zero value is unlimited.
func (a available) min(b available) available {
	if b == (available{}) {
		return a
	}
	a.Limit = plan.LowerLimit(a.Limit, b.Limit)
	a.Live, a.Unplaced, a.State = max(a.Live, b.Live), max(a.Unplaced, b.Unplaced), max(a.State, b.State)
	a.Gradients = a.Gradients && b.Gradients
	a.InputHasGradient = a.InputHasGradient && b.InputHasGradient
	return a
}

func (r *run) availableOf(stage int) available {
	p, s := r.p, r.p.stages[stage]
	if p.cfg.policies[stage] != Optimal {
		return available{}
	}
	m := s.Device.Memory()
	out := available{m.Live, plan.LowerLimit(m.Limit, p.cfg.Budget[stage]), plan.Memory{
		Unplaced: p.Unplaced(stage), BatchInput: stage == 0, InputHasGradient: stage == 0,
		Gradients: !slices.ContainsFunc(s.Params(), func(p nn.NamedParam) bool { return !hasGrad(p) })}}
	if o := p.cfg.Optimizer; o != nil {
		out.State = o.Need(s.Params()).State
	}
	if p.replicaLinks != nil {
		out.Reduction = s.reductionBytes()
	}
	for _, v := range r.batch.Input {
		if stage == 0 && r.inputGrad && v.Tensor.RequiresGrad() {
			out.InputGradient += v.Tensor.Numel() * v.Tensor.DType().Size()
			out.InputHasGradient = out.InputHasGradient && v.Tensor.HasGrad()
		}
	}
	// earlier batches of the update will leave gradients
	if r.batch.FirstMicroBatch > 0 && !slices.ContainsFunc(s.trained, hasGrad) {
		for _, q := range s.trained {
			out.Unplaced += q.Bytes()
		}
		out.Gradients = true
	}
	return out
}

func costs(c profile.Chain) plan.StageCosts {
	return plan.StageCosts{Footprint: c.Footprint, Times: c.UnitTimes, Loss: c.Chain.Loss.Backward,
		Units: c.Units, Prologue: c.Prologue, Spread: c.Timing.Spread}
}

// fullMicroBatches is the number of micro-batches with the most rows.
func (r *run) fullMicroBatches() int {
	return countOf(r.parts, func(m rows) bool { return m.length == r.parts[0].length })
}

func crossings(stages []*Stage) (skips []plan.Skip, ties []plan.Tie) {
	for i, s := range stages {
		for _, p := range s.skips {
			for _, to := range p.to {
				later := stages[to.stage].skips[to.index]
				skips = append(skips, plan.Skip{From: i, FromPlace: p.place, To: to.stage,
					ToPlace: later.place, Pops: later.pops})
			}
		}
		for k, t := range s.ties {
			if t.to.stage >= 0 {
				ties = append(ties, plan.Tie{Earlier: i, Later: t.to.stage,
					EarlierPlace: countOf(s.ties[:k], func(t tie) bool { return t.to.stage >= 0 }),
					LaterPlace:   countOf(stages[t.to.stage].ties[:t.to.index], tie.received)})
			}
		}
	}
	return skips, ties
}

func countOf[T any](list []T, counts func(T) bool) (n int) {
	for _, x := range list {
		if counts(x) {
			n++
		}
	}
	return n
}

func hasGrad(p nn.NamedParam) bool { return p.Exists() && p.Tensor().HasGrad() }
