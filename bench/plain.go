package main

import (
	"context"
	"errors"
	"fmt"

	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// measurePlain compares one stage, on the whole batch at once, with eager PyTorch and
// torch.compile. On GPUs, where compiling takes minutes, it leaves out torch.compile.
func (b *bench) measurePlain(ctx context.Context) error {
	list, precisions, compile := []workload{mlp, gpt, resnet20, resnet50, unet}, []string{""}, []bool{false,
		true}
	switch {
	case b.large:
		list, precisions, compile = b.largeWorkloads(), []string{tf32, bfloat16}, compile[:1]
	case b.Quick:
		list = list[:3]
	}
	var failed error
	for _, w := range list {
		c, err := b.startPython(ctx, "plain.py")
		if err != nil {
			return b.fail(row{What: w.Model, Opponent: "PyTorch"}, err)
		}
		for _, w.Precision = range precisions {
			for _, compile := range compile {
				if err == nil {
					err = b.besidePlain(ctx, w.in(1, pipe.Never), compile, c)
				}
			}
		}
		c.stop()
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", w.Model, err))
		}
	}
	return failed
}

func (b *bench) besidePlain(ctx context.Context, w workload, compile bool, c *child) error {
	x := row{What: w.Model + ", one stage", Opponent: "PyTorch eager", Goal: 1,
		Conditions: fmt.Sprintf("%v, %d threads", b.device, b.threads())}
	if w.Precision != "" {
		x.What = w.Model + ", " + w.Precision
	}
	if compile {
		x.Opponent, x.Goal = "torch.compile", 0
	}
	ours, err := w.newTrainer(pipe.Config{Threads: b.threads(), Devices: []torch.Device{b.device}})
	if err != nil {
		return err
	}
	defer ours.close()
	request, err := w.request(map[string]any{"device": b.device.String(), "compile": compile,
		"trial": b.Trial.Seconds(), "parameters": nn.Count(ours.model)})
	if err != nil {
		return err
	}
	return b.compare(ctx, x, ours.round, c, c.side(request))
}
