package pipe

import (
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

// measure measures the model on the first micro-batch, and on the last one if that has fewer rows.
func (r *minibatch) measure(ctx context.Context) ([]profile.Chain, error) {
	chains, err := r.measured(ctx, false)
	// Measuring takes more memory than some plans, and the least limit is known only when it is
	// done.
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

// measured measures all stages. It keeps the limit unless beyond is set.
func (r *minibatch) measured(ctx context.Context, beyond bool) (chains []profile.Chain, err error) {
	p := r.p
	device, restore, err := p.measuringDevice(beyond)
	if err != nil {
		return nil, err
	}
	defer restore()
	beside, done := p.besides(device)
	defer done()
	err = p.alone(func(c *torch.Ctx) (err error) {
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
		var fewer, fewerTarget []*torch.Tensor
		if last := len(r.parts) - 1; r.larger() <= last {
			fewer, fewerTarget = r.partsOf(c, r.inputs, last), r.partsOf(c, r.targets, last)
		}
		if d := p.stages[0].Device; d.Kind != torch.KindCPU { // which all stages are on: the default stream measures, and then theirs go on
			c.Synchronize()
			defer stream.End(stream.Host{}, d.DefaultStream())
		}
		measured, err := profile.Measure(ctx, p.model, profile.Config{
			Device: device, Peer: device, Beside: beside, Threads: p.cfg.Threads, MicroBatches: len(r.parts), Seed: p.cfg.Seed, Extras: r.batch.Extras, Autocast: p.cfg.Autocast,
			Known: p.cfg.Profile, Balance: p.cfg.Balance, Workers: workers, Loss: r.loss, Target: r.partsOf(c, r.targets, 0), Fewer: fewer, FewerTarget: fewerTarget, LossUnit: true, InputGrad: r.inputGrad, DeferredBatchNorm: p.cfg.DeferredBatchNorm && r.training,
			Split: p.problem(len(r.parts)).Splits(),
		}, r.partsOf(c, r.inputs, 0)...)
		chains = measured.Chains
		return err
	})
	return chains, err
}

// alone runs f on the first worker of the process while the others wait, within a run that was entered. Nothing
// else changes the accounts of the devices meanwhile.
func (p *Pipe) alone(f func(c *torch.Ctx) error) (err error) {
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

// measuringDevice is the device on which layers are measured until restore is called. With one
// stage it is the device of the stage, with its limit, and on a GPU with all stages, which are on one
// (Config.checkBudget). With several it is a device that no stage is on and no other pipe measures
// on, with the highest of the limits.
func (p *Pipe) measuringDevice(beyond bool) (d torch.Device, restore func(), err error) {
	limit, done := int64(0), func() {}
	if d = p.stages[0].Device; len(p.stages) == 1 || d.Kind != torch.KindCPU {
		limit = d.Memory().Limit
	} else {
		if d, done, err = p.unusedDevice(); err != nil {
			return d, nil, err
		}
		limit = p.highestLimit()
	}
	if beyond {
		limit = 0
	}
	was := d.Memory().Limit
	d.SetLimit(limit)
	return d, func() {
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

// highestLimit is the highest limit of the stages' devices. 0 is none.
func (p *Pipe) highestLimit() (highest int64) {
	for i, s := range p.stages {
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
func (r *minibatch) partsOf(c *torch.Ctx, values []Value, microBatch int) (out []*torch.Tensor) {
	for _, v := range values {
		out = append(out, c.Detach(r.parts[microBatch].part(c, v)))
	}
	return out
}
