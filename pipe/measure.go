package pipe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"penstock.example/internal/stream"
	"penstock.example/nn"
	"penstock.example/profile"
	"penstock.example/torch"
)

// measure measures the model on the first micro-batch, and on the last one if that has fewer rows, on a device of
// each kind that the stages are on.
func (r *run) measure(ctx context.Context) ([]profile.Chain, error) {
	chains, err := r.measured(ctx, false)
	// Only a measurement tells the least limit. Where that has no room for it, it goes on without, and holds as little
	// as it can.
	if errors.Is(err, torch.ErrOutOfMemory) {
		chains, err = r.measured(ctx, true)
	}
	return chains, err
}

// measuredOn has the devices on which pipes measure stages that are placed elsewhere. Bytes are
// read from the account of the device, so one pipe at a time may measure on it. A pipe does not
// wait for another to end: a layer that is being measured may run a pipe that measures too.
var measuredOn struct {
	mu    sync.Mutex
	taken map[torch.Device]bool
}

// measured measures all stages. Stages on equal devices are measured on one of these, together, and each gets the
// chain that was measured where it is. It keeps the limits unless beyond is set.
func (r *run) measured(ctx context.Context, beyond bool) ([]profile.Chain, error) {
	out := make([]profile.Chain, len(r.p.stages))
	for k, stages := range alike(len(out), func(i int) string { return r.available[i].Hardware }) {
		chains, err := r.measuredFor(ctx, stages, k == 0, beyond)
		if err != nil {
			return nil, err
		}
		for _, i := range stages {
			out[i] = chains[i]
		}
	}
	return out, nil
}

// alike puts stages on equal devices together, in the order of the first of each.
func alike(stages int, hardware func(stage int) string) (groups [][]int) {
	at := map[string]int{}
	for i := range stages {
		h := hardware(i)
		k, known := at[h]
		if !known {
			k = len(groups)
			at[h], groups = k, append(groups, nil)
		}
		groups[k] = append(groups[k], i)
	}
	return groups
}

// hardwareOf is what a device of this process is made of. A GPU is asked once.
func hardwareOf(d torch.Device) string {
	if d.Kind == torch.KindCPU {
		return d.Kind.String()
	}
	known, ok := models.Load(d)
	if !ok {
		known = cmp.Or(d.Model(), d.String()) // like no other
		models.Store(d, known)
	}
	return known.(string)
}

var models sync.Map // torch.Device of a GPU -> string

// measuredFor measures all stages on a device that is like those of some of them. first says that they are like
// that of the first stage, for which Config.Profile is.
func (r *run) measuredFor(ctx context.Context, stages []int, first, beyond bool) (chains []profile.Chain, err error) {
	p := r.p
	device, limit, restore, err := p.measuringDevice(stages)
	if err != nil {
		return nil, err
	}
	defer restore()
	if beyond {
		device.SetLimit(0)
	}
	beside, done := p.besides(device)
	defer done()
	err = p.exclusively(func(c *torch.Ctx) (err error) {
		if err := ctx.Err(); err != nil { // others may have measured for long
			return err
		}
		// of layers that change some also where running statistics are not to move
		var buffers nn.BufferCopy
		buffers.Take(nn.Buffers(p.model))
		defer buffers.Restore()
		var workers []int
		for _, s := range p.stages {
			workers = append(workers, s.worker)
		}
		c.Synchronize() // the default stream of a GPU measures, and then those of the stages go on
		p.idle()
		defer p.idle()
		here := torch.NewCtx(torch.Options{Device: device})
		defer here.Close()
		part := func(values []Value, microBatch int) []*torch.Tensor {
			list := r.partsOf(c, values, microBatch)
			for i, t := range list {
				if !t.On(device) {
					list[i] = here.CopyHere(t)
				}
			}
			return list
		}
		var fewer, fewerTarget []*torch.Tensor
		if last := len(r.parts) - 1; r.fullMicroBatches() <= last {
			fewer, fewerTarget = part(r.inputs, last), part(r.targets, last)
		}
		config := profile.Config{
			Device: device, Peer: device, Beside: beside, Threads: p.cfg.Threads, MicroBatches: len(r.parts), Seed: p.cfg.Seed, Extras: r.batch.Extras, Autocast: p.cfg.Autocast,
			Balance: p.cfg.Balance, Workers: workers, Loss: r.loss, Target: part(r.targets, 0), Fewer: fewer, FewerTarget: fewerTarget, LossUnit: true, InputGrad: r.inputGrad, DeferredBatchNorm: p.cfg.DeferredBatchNorm && r.training,
			Split: p.problem(len(r.parts)).Splits(), Lean: beyond,
		}
		if first {
			config.Known = p.cfg.Profile
		}
		measured, err := profile.Measure(ctx, p.model, config, part(r.inputs, 0)...)
		if chains = measured.Chains; limit > 0 && measured.Most > limit {
			p.plans.tookMore(measured.Most, limit)
		}
		return err
	})
	return chains, err
}

// tookMore notes that measuring took more than a limit.
func (p *plans) tookMore(most, limit int64) {
	p.known.Lock()
	defer p.known.Unlock()
	p.beyond.bytes, p.beyond.limit = most, limit
}

// MeasuredBeyond is how many bytes were live on a device, at most, when the pipe last measured layers there beyond its
// limit, and that limit. Both are 0 where measuring has kept the limits, as it does where they have room for a unit by
// itself (profile.Measure). Below that no plan may keep them, and only a measurement tells the least that will do.
func (p *Pipe) MeasuredBeyond() (bytes, limit int64) {
	p.plans.known.Lock()
	defer p.plans.known.Unlock()
	return p.plans.beyond.bytes, p.plans.beyond.limit
}

// idle blocks until the default streams of the stages' GPUs have done what is queued on them.
func (p *Pipe) idle() {
	var done []torch.Device
	for _, s := range p.stages {
		if s.Here && s.Device.Kind != torch.KindCPU && !slices.Contains(done, s.Device) {
			stream.End(stream.Host{}, s.Device.DefaultStream())
			done = append(done, s.Device)
		}
	}
}

// exclusively runs f on the first worker of the process while the others wait, within a run that was entered. Nothing
// else changes the accounts of the devices meanwhile.
func (p *Pipe) exclusively(f func(c *torch.Ctx) error) (err error) {
	var arrived sync.WaitGroup
	done := make(chan struct{})
	arrived.Add(len(p.mine))
	p.onWorkers(func(worker int, c *torch.Ctx) {
		arrived.Done()
		if worker != p.mine[0] {
			<-done
			return
		}
		defer close(done)
		arrived.Wait()
		err = fmt.Errorf("pipe: measuring: %w", ErrGoexit) // overwritten unless a layer ends the goroutine
		err = onStage(0, c, func(_ int, c *torch.Ctx) error { return f(c) })
	})
	return err
}

// measuringDevice is the device on which layers are measured for some stages until restore is called. With one
// stage, and on GPUs, it is the device of the first of them that is of this process, with its limit. On CPUs with
// several stages it is a device that no stage is on and no other pipe measures on, with the highest of the limits.
func (p *Pipe) measuringDevice(stages []int) (d torch.Device, limit int64, restore func(), err error) {
	done := func() {}
	at := slices.IndexFunc(stages, func(i int) bool { return p.stages[i].Here })
	switch {
	case p.cfg.Devices[stages[0]].Kind == torch.KindCPU && len(p.stages) > 1:
		if d, done, err = p.unusedDevice(); err != nil {
			return d, 0, nil, err
		}
		limit = p.highestLimit(stages)
	case at < 0:
		return d, 0, nil, fmt.Errorf("stage %d is on a GPU of another kind than those of the first process, which measures for all; "+
			"have equal GPUs, or one of each kind in the first process, or use another policy than optimal", stages[0])
	default:
		d = p.stages[stages[at]].Device
		limit = d.Memory().Limit
	}
	was := d.Memory().Limit
	d.SetLimit(limit)
	return d, limit, func() {
		d.SetLimit(was)
		done()
	}, nil
}

// besides reserves devices that work beside the one on which layers are timed, as workers do beside each other,
// until done is called. Each keeps the same limit.
func (p *Pipe) besides(device torch.Device) (list []torch.Device, done func()) {
	var dones []func()
	if device.Kind == torch.KindCPU && p.cfg.Profile == nil { // which has the times
		for range profile.Others(device, len(p.mine), p.cfg.Threads) {
			d, done, err := p.unusedDevice()
			if err != nil {
				break // there are no more
			}
			was := d.Memory().Limit
			d.SetLimit(device.Memory().Limit)
			list, dones = append(list, d), append(dones, func() {
				d.SetLimit(was)
				done()
			})
		}
	}
	return list, func() {
		for _, done := range dones {
			done()
		}
	}
}

// unusedDevice reserves a device that no stage is on, from the last one down, until done is called.
func (p *Pipe) unusedDevice() (d torch.Device, done func(), err error) {
	measuredOn.mu.Lock()
	defer measuredOn.mu.Unlock()
	for i := torch.MaxCPU - 1; i >= 0; i-- {
		d := torch.CPU(i)
		if measuredOn.taken[d] || slices.ContainsFunc(p.stages, func(s *Stage) bool { return s.Device == d }) {
			continue
		}
		if measuredOn.taken == nil {
			measuredOn.taken = map[torch.Device]bool{}
		}
		measuredOn.taken[d] = true
		return d, func() {
			measuredOn.mu.Lock()
			defer measuredOn.mu.Unlock()
			delete(measuredOn.taken, d)
		}, nil
	}
	return d, nil, fmt.Errorf("all %d CPU devices are stages of the pipe or being measured on by others; use fewer "+
		"stages, or plan one pipe after the other", torch.MaxCPU)
}

// highestLimit is the highest limit of the devices of some stages. 0 is none.
func (p *Pipe) highestLimit(stages []int) (highest int64) {
	for _, i := range stages {
		s := p.stages[i]
		if s.Device != p.cfg.Devices[i] { // of another process
			continue
		}
		limit := s.Device.Memory().Limit
		if limit == 0 {
			return 0
		}
		highest = max(highest, limit)
	}
	return highest
}

// partsOf are the parts of values that a micro-batch has.
func (r *run) partsOf(c *torch.Ctx, values []Value, microBatch int) (out []*torch.Tensor) {
	for _, v := range values {
		out = append(out, c.Detach(r.parts[microBatch].part(c, v)))
	}
	return out
}
