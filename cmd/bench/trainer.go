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
	loss    nn.MSELoss
	data    []*torch.Ctx    // own the batch, on the first and the last device
	actions actions         // of all steps of its rounds
	updates optim.Optimizer // of each step; nil is none
}

// unstarted makes a pipe with the workload's chunks, and its policy if the config has none, on
// devices from first on. Devices of its own give a pipe accounts of its own.
func (w workload) unstarted(config pipe.Config, first int) (*trainer, error) {
	s, err := w.shapes(w.Batch)
	if err != nil {
		return nil, err
	}
	model, err := w.build()
	if err != nil {
		return nil, err
	}
	config.Chunks, config.Devices = w.Chunks, devices(config, first)
	if config.Checkpoint == "" {
		config.Checkpoint = w.Checkpoint
	}
	p, err := pipe.New(model, config)
	if err != nil {
		return nil, err
	}
	t := &trainer{model: model, pipe: p, loss: nn.MSE()}
	for _, d := range []torch.Device{config.Devices[0], config.Devices[len(config.Devices)-1]} {
		t.data = append(t.data, torch.NewCtx(torch.Options{Device: d, Threads: 1, Seed: 7}))
	}
	t.batch = pipe.Batch{Input: pipe.Rows(s.input(t.data[0])), Target: pipe.Rows(normal(t.data[1], s.Target))}
	return t, nil
}

// trainer is warmed up and records its steps.
func (w workload) trainer(ctx context.Context, config pipe.Config, first int) (*trainer, error) {
	t, err := w.unstarted(config, first)
	if err != nil {
		return nil, err
	}
	p := t.pipe
	for range 2 {
		if _, err := t.step(ctx); err != nil {
			t.close()
			return nil, err
		}
	}
	if t.actions.program, err = p.Program(w.Chunks); err != nil { // as it was planned for the steps above
		t.close()
		return nil, err
	}
	for _, d := range p.Devices() {
		d.ResetPeak()
	}
	p.SetRecord(true)
	return t, nil
}

func (t *trainer) close() {
	for _, c := range t.data {
		c.Close()
	}
	if t.updates != nil {
		t.updates.Close()
	}
	t.pipe.Close()
	nn.Free(t.model)
	for _, d := range t.pipe.Devices() {
		d.Trim()
	}
}

func (t *trainer) step(ctx context.Context) (pipe.Result, error) {
	r, err := t.pipe.Step(ctx, t.batch, t.loss)
	if err == nil && t.updates != nil {
		err = t.pipe.Update(ctx, t.updates)
	}
	nn.ZeroGrads(t.model)
	t.batch.Step++
	return r, err
}

// round is the median of the steps, in milliseconds, that fit into some time. They are recorded,
// which takes a look at the clock for each action.
func (t *trainer) round(ctx context.Context, length time.Duration) (float64, error) {
	var ms []float64
	for begin := time.Now(); len(ms) == 0 || time.Since(begin) < length; {
		start := time.Now()
		r, err := t.step(ctx)
		if err != nil {
			return 0, err
		}
		ms = append(ms, time.Since(start).Seconds()*1e3)
		if err := t.actions.add(r.Timeline); err != nil {
			return 0, err
		}
	}
	return median(ms), nil
}

// peaks is the most that each device has held since the warm-up: parameters, gradients, batch,
// activations, workspaces.
func (t *trainer) peaks() []int64 {
	var out []int64
	for _, d := range t.pipe.Devices() {
		out = append(out, d.Memory().Peak)
	}
	return out
}
