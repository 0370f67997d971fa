package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"

	"penstock.example/internal/system"
	"penstock.example/nn"
	"penstock.example/pipe"
)

// measureTorchgpipe compares pipelines of two stages with one thread each.
func (b *bench) measureTorchgpipe(ctx context.Context) error {
	if os.Getenv("TORCHGPIPE") == "" {
		return b.fail(row{What: "two stages", Opponent: "torchgpipe"},
			errors.New("TORCHGPIPE names no folder that has it"))
	}
	list := []workload{mlp.in(1, pipe.Never), mlp.in(4, pipe.Never), mlp, gpt, resnet20, resnet50, unet}
	if b.Quick {
		list = list[2:5]
	}
	for _, w := range list {
		if err := b.besideTorchgpipe(ctx, w); err != nil {
			return fmt.Errorf("%s: %w", w.Model, err)
		}
	}
	return nil
}

func (b *bench) besideTorchgpipe(ctx context.Context, w workload) error {
	ours, err := w.newTrainer(pipe.Config{Balance: w.Balance})
	if err != nil {
		return err
	}
	defer ours.close()
	var parameters []int64 // by layer
	for _, l := range ours.model.Layers() {
		parameters = append(parameters, nn.Count(l.Layer))
	}
	x := row{What: fmt.Sprintf("%s, m=%d, two stages", w.Model, w.Chunks), Opponent: "torchgpipe",
		Goal: 1.35, Conditions: "1 thread a stage"}
	if w.Checkpoint == pipe.Never {
		x.Goal = 2
	}
	request, err := w.request(map[string]any{"chunks": w.Chunks, "checkpoint": w.Checkpoint.String(),
		"balance": w.Balance, "parameters": parameters, "trial": b.Trial.Seconds()})
	if err != nil {
		return err
	}
	for _, tuned := range []bool{false, true} {
		var args []string
		if tuned {
			x.Opponent, x.Goal = "torchgpipe, tuned", 0
			args = []string{cmp.Or(system.KernelNames()["BLAS"], "-")}
			if w.Model == unet.Model { // its nn.InstanceNorm2d is slower than our norm
				request["options"].(map[string]any)["norm"] = "group_norm"
			}
		}
		c, err := b.startPython(ctx, "torchgpipe/bench.py", args...)
		if err != nil {
			return b.fail(x, err)
		}
		err = b.compare(ctx, x, ours.round, c, c.side(request))
		if c.stop(); err != nil {
			return err
		}
	}
	return nil
}
