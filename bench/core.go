package main

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// measureCore measures the overhead of a cell, on a CPU also torchgpipe's.
func (b *bench) measureCore(ctx context.Context) error {
	piped, plain, err := measureCell(ctx, b.device, b.Blocks)
	if err != nil {
		return err
	}
	x := row{What: "overhead of a cell, us", Value: spreadOf(byRound(piped, plain, minus)), Goal: 10,
		AtMost: true, Conditions: fmt.Sprintf("pipe %.1f, plain loop %.1f us", median(piped), median(plain))}
	c, err := b.startPython(ctx, "torchgpipe/bench.py")
	if err == nil && b.device.Kind == torch.KindCPU {
		a, err := c.ask(map[string]any{"cell": map[string]int{"stages": cellStages, "chunks": cellChunks,
			"width": cellWidth, "rows": cellRows, "blocks": max(b.Blocks/5, 5)}})
		if c.stop(); err != nil {
			return err
		}
		x.Opponent = fmt.Sprintf("torchgpipe: %.1f us", spreadOf(byRound(a.Pipe, a.Plain, minus)).Median)
	}
	b.add(x)
	return nil
}

// The cell's model has two stages of a Linear and a ReLU on one device, so small that the pipe's
// own work takes most of the time.
const (
	cellStages = 2
	cellChunks = 32
	cellWidth  = 8
	cellRows   = 2 // of a micro-batch
	cellSteps  = 4 // in a block
)

// measureCell alternates blocks of steps through a pipe with blocks of a plain loop of the same
// operators. It returns each block's microseconds per cell, a stage's work on a micro-batch:
// forward without a graph, recomputation, backward, and a share of the loss.
func measureCell(ctx context.Context, device torch.Device, blocks int) (piped, plains []float64, err error) {
	model := nn.NewSequential()
	var linear [cellStages]*nn.Linear
	for i, name := range []string{"0", "1"} {
		linear[i] = nn.NewLinear(cellWidth, cellWidth)
		model.Add("fc"+name, linear[i]).Add("relu"+name, nn.NewReLU())
	}
	p, err := pipe.New(model, pipe.Config{Balance: []int{2, 2}, Devices: []torch.Device{device, device},
		Chunks: cellChunks, Checkpoint: pipe.Always})
	if err != nil {
		return nil, nil, err
	}
	defer nn.Free(model)
	defer p.Close()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	data := torch.NewCtx(torch.Options{Device: device, Threads: 1, Seed: 7})
	defer data.Close()
	rows := func(n int64) *torch.Tensor { return normal(data, []int64{n, cellWidth}) }
	const together = cellRows * cellChunks
	all := pipe.Batch{Input: pipe.Rows(rows(together)), Target: pipe.Rows(rows(together))}
	input, target, gradient := rows(cellRows), rows(cellRows), rows(cellRows)
	hidden, one := rows(cellRows).SetRequiresGrad(true), data.Ones(torch.Float32)

	loop := torch.NewCtx(torch.Options{Device: device, Threads: 1})
	defer loop.Close()
	stage := func(i int, x *torch.Tensor) *torch.Tensor {
		return loop.Op("penstock::relu", loop.Linear(x, linear[i].Weight.Tensor(), linear[i].Bias.Tensor()))
	}
	backward := func(y, g *torch.Tensor) { loop.Backward([]*torch.Tensor{y}, []*torch.Tensor{g}, false) }
	plain := func() {
		loop.SetGrad(false)
		loop.Op("aten::mse_loss", stage(1, stage(0, input)), target, torch.ReduceMean)
		loop.Close()
		// Recomputation and backward, the last stage first.
		loop.SetGrad(true)
		backward(loop.Op("aten::mse_loss", stage(1, hidden), target, torch.ReduceMean), one)
		hidden.SetGradOf(nil)
		backward(stage(0, input), gradient)
		loop.Close()
	}
	perCell := func(start time.Time) float64 {
		return time.Since(start).Seconds() * 1e6 / (cellSteps * cellStages * cellChunks)
	}
	for range blocks + 1 {
		start := time.Now()
		for range cellSteps {
			if _, err := p.Step(ctx, all, nn.MSE()); err != nil {
				return nil, nil, err
			}
		}
		piped = append(piped, perCell(start))
		// The loop runs on the pipe's worker: two cores of a shared machine are seldom equally
		// fast.
		if err := p.OnStages(ctx, func(i int, _ *torch.Ctx) error {
			if i > 0 {
				return nil
			}
			start := time.Now()
			for range cellSteps * cellChunks {
				plain()
			}
			loop.Synchronize()
			plains = append(plains, perCell(start))
			return nil
		}); err != nil {
			return nil, nil, err
		}
	}
	return piped[1:], plains[1:], nil // the first block warms up
}
