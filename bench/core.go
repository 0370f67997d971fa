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

// measureCore measures the overhead of a cell, and on a CPU also a matrix product and what many
// micro-batches cost.
func (b *bench) measureCore(ctx context.Context) error {
	piped, plain, err := measureCell(ctx, b.device, b.Blocks)
	if err != nil {
		return err
	}
	x := row{What: "overhead of a cell, us", Value: overhead(piped, plain), Format: "%.1f", Goal: 10, AtMost: true,
		Conditions: fmt.Sprintf("pipe %.1f, plain loop %.1f us", median(piped), median(plain))}
	if b.device.Kind != torch.KindCPU {
		b.add(x)
		return nil
	}
	if c, err := b.startPython(ctx, "torchgpipe/bench.py"); err == nil {
		a, err := c.ask(map[string]any{"cell": map[string]int{"stages": cellStages, "chunks": cellChunks,
			"width": cellWidth, "rows": cellRows, "blocks": max(b.Blocks/5, 5)}})
		c.stop()
		if err != nil {
			return err
		}
		x.Opponent = fmt.Sprintf("torchgpipe: %.1f us", overhead(a.Pipe, a.Plain).Median)
	}
	b.add(x)
	rates, peaks := productRates(b.Blocks / 4)
	b.add(row{What: "product of 1024^3, one thread", Opponent: "the core's peak", Goal: 0.9,
		Value: spreadOf(ratios(rates, peaks)), Conditions: fmt.Sprintf("%.0f of %.0f GFLOP/s", median(rates), median(peaks))})
	return b.measureMany(ctx)
}

// productRates returns the rates of products of two 1024 x 1024 matrices of float32 on one thread,
// and the core's rates of fused multiply-adds, in GFLOP/s. Each is the best of eight: what the core
// can do while nobody else uses it.
func productRates(rounds int) (rates, peaks []float64) {
	const n = 1024
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c := torch.NewCtx(torch.Options{Threads: 1})
	defer c.Close()
	x := c.Ones(torch.Float32, n, n)
	mark := c.Mark()
	for range rounds {
		best := 0.0
		for range 8 {
			start := time.Now()
			c.Mm(x, x)
			best = max(best, 2e-9*n*n*n/time.Since(start).Seconds())
			c.Release(mark)
		}
		peaks, rates = append(peaks, torch.FMAPeak()/1e9), append(rates, best)
	}
	return rates, peaks
}

// measureMany compares a step of mlp in 8 micro-batches with one in 1, on one thread.
func (b *bench) measureMany(ctx context.Context) error {
	var sides []side
	for i, chunks := range []int{1, 8} {
		t, err := mlp.in(chunks, pipe.Never).newTrainer(pipe.Config{Devices: []torch.Device{torch.CPU(i)}})
		if err != nil {
			return err
		}
		defer t.close()
		sides = append(sides, t.round)
	}
	m, err := b.play(ctx, sides[0], sides[1])
	if err != nil {
		return err
	}
	b.add(row{What: "mlp, time of m=8 to m=1", Value: m.Faster(), Goal: 1.2, AtMost: true,
		Conditions: fmt.Sprintf("one stage, one thread; %.1f and %.1f ms", median(m.Theirs), median(m.Ours))})
	return nil
}

// The cell's model has two stages of a Linear and a ReLU on one device. Layers and micro-batches are
// so small that the pipe's own work takes most of the time.
const (
	cellStages = 2
	cellChunks = 32
	cellWidth  = 8
	cellRows   = 2 // of a micro-batch
	cellSteps  = 4 // in a block
)

// overhead returns the differences of adjacent blocks.
func overhead(piped, plain []float64) spread {
	differences := make([]float64, min(len(piped), len(plain)))
	for i := range differences {
		differences[i] = piped[i] - plain[i]
	}
	return spreadOf(differences)
}

// measureCell alternates blocks of steps through a pipe with blocks of a plain loop of the same
// operators. It returns the us of a block for each stage and micro-batch: forward without a graph,
// recomputation, backward, and the stage's share of the loss.
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
	all := pipe.Batch{Input: pipe.Rows(rows(cellRows * cellChunks)), Target: pipe.Rows(rows(cellRows * cellChunks))}
	input, target, gradient := rows(cellRows), rows(cellRows), rows(cellRows)
	hidden, one := rows(cellRows).SetRequiresGrad(true), data.Ones(torch.Float32)

	loop := torch.NewCtx(torch.Options{Device: device, Threads: 1})
	defer loop.Close()
	stage := func(i int, x *torch.Tensor) *torch.Tensor {
		return loop.ReLU(loop.Linear(x, linear[i].Weight.Tensor(), linear[i].Bias.Tensor()))
	}
	backward := func(y, g *torch.Tensor) { loop.Backward([]*torch.Tensor{y}, []*torch.Tensor{g}, false) }
	plain := func() {
		// Forward of both stages and the loss; nothing is kept.
		loop.SetGrad(false)
		loop.MSE(stage(1, stage(0, input)), target, torch.ReduceMean)
		loop.Close()
		// Recomputation and backward, the last stage first.
		loop.SetGrad(true)
		backward(loop.MSE(stage(1, hidden), target, torch.ReduceMean), one)
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
		// The loop runs on the pipe's worker: two cores of a shared machine are seldom equally fast.
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
