package main

import (
	"context"
	"fmt"

	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// plainWorkloads are trained on the whole batch at once. Those for GPUs are larger.
func (b *bench) plainWorkloads() []workload {
	switch {
	case b.device.Kind != torch.KindCPU:
		options := models.Options{Width: 1024, Depth: 8, Heads: 16, Context: 512}
		return []workload{{Model: "gpt", Options: options, Batch: 32},
			{Model: "resnet50", Options: models.Options{Size: 224}, Batch: 128}}
	case b.Quick:
		return []workload{mlp, gpt, resnet20}
	}
	return []workload{mlp, gpt, resnet20, resnet50, unet}
}

// measurePlain compares one stage with eager PyTorch and with torch.compile.
func (b *bench) measurePlain(ctx context.Context) error {
	for _, w := range b.plainWorkloads() {
		for _, compile := range []bool{false, true} {
			if err := b.besidePlain(ctx, w.in(1, pipe.Never), compile); err != nil {
				return fmt.Errorf("%s: %w", w.Model, err)
			}
		}
	}
	return nil
}

func (b *bench) besidePlain(ctx context.Context, w workload, compile bool) error {
	threads, device := cores(), "cpu"
	if b.device.Kind != torch.KindCPU {
		threads, device = 1, b.device.String()
	}
	x := row{What: w.Model + ", one stage", Opponent: "PyTorch eager", Goal: 1,
		Conditions: fmt.Sprintf("%v, %d threads", b.device, threads)}
	if compile {
		x.Opponent, x.Goal = "torch.compile", 0
	}
	ours, err := w.newTrainer(pipe.Config{Threads: threads, Devices: []torch.Device{b.device}})
	if err != nil {
		return err
	}
	defer ours.close()
	request, err := w.request(map[string]any{"device": device, "compile": compile, "trial": b.Trial.Seconds(),
		"parameters": nn.Count(ours.model)})
	if err != nil {
		return err
	}
	return b.compare(ctx, x, ours, request, "plain.py")
}
