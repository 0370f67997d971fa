package pipe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"penstock/nn"
	"penstock/profile"
	"penstock/torch"
)

// measure measures the model on the first micro-batch, which no other is larger than.
func (r *minibatch) measure(ctx context.Context) ([]profile.Chain, error) {
	chains, err := r.measured(ctx, false)
	if errors.Is(err, torch.ErrOutOfMemory) { // measuring takes more than some plans do, and what would do can only be said when it is known
		chains, err = r.measured(ctx, true)
	}
	return chains, err
}

// benches is held by the pipe that measures its stages elsewhere than on their devices: pipes have that device in common, and bytes are read from its account.
var benches sync.Mutex

// measured measures all stages. Unless beyond is set it stays within the limit.
func (r *minibatch) measured(ctx context.Context, beyond bool) (chains []profile.Chain, err error) {
	p := r.p
	if len(p.stages) > 1 {
		benches.Lock()
		defer benches.Unlock()
	}
	device, restore := p.bench(beyond)
	defer restore()
	err = p.quietly(func(c *torch.Ctx) (err error) {
		if err := ctx.Err(); err != nil { // others may have measured for long
			return err
		}
		var buffers nn.BufferCopy // of layers that change some also where running statistics are not to move
		buffers.Take(nn.Buffers(p.model))
		defer buffers.Restore()
		chains, err = profile.MeasureChain(ctx, p.model, profile.ChainConfig{
			Config:  profile.Config{Device: device, Threads: p.cfg.Threads, Seed: p.cfg.Seed, Extras: r.batch.Extras, Autocast: p.cfg.Autocast},
			Balance: p.cfg.Balance, Loss: r.loss, Targets: r.partsOf(c, r.targets), LossUnit: true, InputGrad: r.inputGrad, DeferredBatchNorm: p.cfg.DeferredBatchNorm && r.training,
		}, r.partsOf(c, r.inputs)...)
		return err
	})
	return chains, err
}

// quietly runs f on the first worker while all stand still: bytes are read from the devices' accounts.
func (p *Pipe) quietly(f func(c *torch.Ctx) error) (err error) {
	if err := p.enter(); err != nil {
		return err
	}
	defer p.open.Done()
	var arrived, all sync.WaitGroup
	done := make(chan struct{})
	arrived.Add(len(p.workers))
	all.Add(len(p.workers))
	p.start(func(worker int, c *torch.Ctx) {
		defer all.Done()
		arrived.Done()
		if worker != 0 {
			<-done
			return
		}
		defer close(done)
		arrived.Wait()
		err = fmt.Errorf("pipe: measuring: %w", ErrGoexit) // overwritten unless a layer ends the goroutine
		err = onStage(0, c, func(_ int, c *torch.Ctx) error { return f(c) })
	})
	all.Wait()
	return err
}

// bench is the device that layers are measured on: that of the only stage, within its limit, or one that no stage is on, with the highest limit of any.
func (p *Pipe) bench(beyond bool) (d torch.Device, restore func()) {
	if len(p.stages) == 1 {
		d = p.stages[0].Device
		was := d.Memory().Limit
		if beyond {
			d.SetLimit(0)
		}
		return d, func() { d.SetLimit(was) }
	}
	d = torch.CPU(torch.MaxCPU - 1)
	for slices.ContainsFunc(p.stages, func(s *Stage) bool { return s.Device == d }) && d.Index > 0 {
		d.Index--
	}
	highest := int64(0)
	for _, s := range p.stages {
		m := s.Device.Memory()
		if m.Limit == 0 || beyond {
			return d, func() {}
		}
		highest = max(highest, m.Limit)
	}
	was := d.Memory().Limit
	d.SetLimit(highest)
	return d, func() { d.SetLimit(was) }
}

// partsOf are the first micro-batch's parts of values.
func (r *minibatch) partsOf(c *torch.Ctx, values []Value) (out []*torch.Tensor) {
	for _, v := range values {
		out = append(out, c.Detach(r.parts[0].part(c, v)))
	}
	return out
}
