package main

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"penstock.example/pipe"
	"penstock.example/torch"
)

// measureCore measures a matrix product, the overhead of a cell, and what many micro-batches cost.
func (b *bench) measureCore(ctx context.Context) error {
	rates, peaks := productRates(b.Blocks / 4)
	b.add(row{What: "product of 1024^3, one thread", Opponent: "the core's peak", Goal: 0.9,
		Value: spreadOf(ratios(rates, peaks)), Conditions: fmt.Sprintf("%.0f of %.0f GFLOP/s", median(rates), median(peaks))})
	piped, plain, err := measureCell(ctx, b.Blocks)
	if err != nil {
		return err
	}
	x := row{What: "overhead of a cell, us", Value: overhead(piped, plain), Format: "%.1f", Goal: 10, AtMost: true,
		Conditions: fmt.Sprintf("pipe %.1f, plain loop %.1f us", median(piped), median(plain))}
	if c, err := b.startPython(ctx, torchgpipeScript); err == nil {
		a, err := c.ask(map[string]any{"cell": map[string]int{"stages": cellStages, "chunks": cellChunks,
			"width": cellWidth, "rows": cellRows, "blocks": max(b.Blocks/5, 5)}})
		c.stop()
		if err != nil {
			return err
		}
		x.Opponent = fmt.Sprintf("torchgpipe: %.1f us", overhead(a.Pipe, a.Plain).Median)
	}
	b.add(x)
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
