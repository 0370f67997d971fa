package main

import (
	"context"
	"time"

	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// trainer is a workload in a pipe.
type trainer struct {
	model   *nn.Sequential
	pipe    *pipe.Pipe
	batch   pipe.Batch
	data    []*torch.Ctx    // own the input on the first device, and the target on the last
	updates optim.Optimizer // updates after each step; nil drops the gradients
}

// newTrainer makes a pipe with the workload's micro-batches and policy, which the config lacks.
func (w workload) newTrainer(config pipe.Config) (*trainer, error) {
	s, err := w.shapes()
	if err != nil {
		return nil, err
	}
	model, err := w.build()
	if err != nil {
		return nil, err
	}
	config.Chunks, config.Checkpoint = w.Chunks, w.Checkpoint
	if w.Precision == bfloat16 {
		config.Autocast = torch.AutocastBFloat16
	}
	p, err := pipe.New(model, config)
	if err != nil {
		return nil, err
	}
	t := &trainer{model: model, pipe: p}
	devices := p.Config().Devices
	for _, d := range []torch.Device{devices[0], devices[len(devices)-1]} {
		t.data = append(t.data, torch.NewCtx(torch.Options{Device: d, Threads: 1, Seed: 7}))
	}
	input, target := s.random(t.data[0]), normal(t.data[1], s.target)
	t.batch = pipe.Batch{Input: pipe.Rows(input), Target: pipe.Rows(target)}
	return t, nil
}

func (t *trainer) close() {
	for _, c := range t.data {
		c.Close()
	}
	t.pipe.Close()
	nn.Free(t.model)
	for _, d := range t.pipe.Devices() {
		d.Trim()
	}
}

func (t *trainer) step(ctx context.Context) (loss float64, err error) {
	r, err := t.pipe.Step(ctx, t.batch, nn.MSE())
	if err == nil && t.updates != nil {
		err = t.pipe.Update(ctx, t.updates)
	}
	nn.ZeroGrads(t.model)
	return r.Loss, err
}

// round is the trainer's side of a match.
func (t *trainer) round(ctx context.Context, length time.Duration) (float64, error) {
	var ms []float64
	for begin := time.Now(); len(ms) == 0 || time.Since(begin) < length; {
		start := time.Now()
		if _, err := t.step(ctx); err != nil {
			return 0, err
		}
		ms = append(ms, milliseconds(time.Since(start)))
	}
	return median(ms), nil
}
