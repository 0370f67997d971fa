package main

import (
	"context"
	"runtime"
	"time"

	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// The cell that is measured: the smallest layers on the smallest micro-batches, so that what is
// left is what the pipe itself does.
const (
	cellStages = 2
	cellChunks = 32
	cellWidth  = 8
	cellRows   = 2 // of a micro-batch
	cellSteps  = 4 // in a block
)

// cell is the time of one (stage, micro-batch): forward without a graph, recomputation, backward,
// and the stage's share of the loss.
type cell struct {
	Pipe     spread // us
	Plain    spread // the same operators in a plain loop
	Overhead spread // of adjacent blocks
}

func cellOf(piped, plain []float64) cell {
	difference := make([]float64, len(piped))
	for i := range piped {
		difference[i] = piped[i] - plain[i]
	}
	return cell{Pipe: spreadOf(piped), Plain: spreadOf(plain), Overhead: spreadOf(difference)}
}

// measureCell alternates blocks of steps through a pipe of two stages on one device with blocks of
// a plain loop.
func measureCell(ctx context.Context, blocks int) (cell, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	b, err := newCellBench()
	if err != nil {
		return cell{}, err
	}
	defer b.close()
	var piped, plain []float64
	for i := range blocks + 1 {
		p, err := b.piped(ctx)
		if err != nil {
			return cell{}, err
		}
		q, err := b.plain(ctx)
		if err != nil {
			return cell{}, err
		}
		if i > 0 { // the first is a warm-up
			piped, plain = append(piped, p), append(plain, q)
		}
	}
	return cellOf(piped, plain), nil
}

// cellBench is a model of one Linear and one ReLU for each stage, through a pipe and in a plain loop.
type cellBench struct {
	model *nn.Sequential
	pipe  *pipe.Pipe
	batch pipe.Batch
	loss  nn.MSELoss

	data *torch.Ctx // owns what follows
	loop *torch.Ctx // of the plain loop
	// of one micro-batch
	input, target, hidden     *torch.Tensor
	lossGradient, outGradient *torch.Tensor
}

func newCellBench() (*cellBench, error) {
	b := &cellBench{model: nn.NewSequential(), loss: nn.MSE()}
	var balance []int
	var devices []torch.Device
	for i := range cellStages {
		b.model.Add("fc"+string(rune('0'+i)), nn.NewLinear(cellWidth, cellWidth)).Add("relu"+string(rune('0'+i)), nn.NewReLU())
		balance, devices = append(balance, 2), append(devices, torch.CPU(0))
	}
	var err error
	b.pipe, err = pipe.New(b.model, pipe.Config{Balance: balance, Devices: devices, Chunks: cellChunks, Checkpoint: pipe.Always})
	if err != nil {
		return nil, err
	}
	b.data, b.loop = torch.NewCtx(torch.Options{Threads: 1, Seed: 7}), torch.NewCtx(torch.Options{Threads: 1})
	normal := func(rows int64) *torch.Tensor {
		return b.data.Normal_(b.data.Empty(torch.Float32, rows, cellWidth), 0, 1)
	}
	b.batch = pipe.Batch{Input: pipe.Rows(normal(cellRows * cellChunks)), Target: pipe.Rows(normal(cellRows * cellChunks))}
	b.input, b.target, b.hidden = normal(cellRows), normal(cellRows), normal(cellRows).SetRequiresGrad(true)
	b.lossGradient, b.outGradient = b.data.Ones(torch.Float32), normal(cellRows)
	return b, nil
}

func (b *cellBench) close() {
	b.loop.Close()
	b.data.Close()
	b.pipe.Close()
	nn.Free(b.model)
}

// perCell is the time since start in microseconds, for each cell of a block.
func perCell(start time.Time) float64 {
	return time.Since(start).Seconds() * 1e6 / (cellSteps * cellStages * cellChunks)
}

func (b *cellBench) piped(ctx context.Context) (float64, error) {
	start := time.Now()
	for range cellSteps {
		if _, err := b.pipe.Step(ctx, b.batch, b.loss); err != nil {
			return 0, err
		}
	}
	return perCell(start), nil
}

// plain runs the loop on the pipe's own worker: two cores of a shared machine are seldom equally fast.
func (b *cellBench) plain(ctx context.Context) (us float64, err error) {
	err = b.pipe.OnStages(ctx, func(stage int, _ *torch.Ctx) error {
		if stage == 0 {
			us = b.loopOnce()
		}
		return nil
	})
	return us, err
}

func (b *cellBench) loopOnce() float64 {
	layers := b.model.Layers()
	c := b.loop
	stage := func(i int, x *torch.Tensor) *torch.Tensor {
		l := layers[2*i].Layer.(*nn.Linear)
		return c.ReLU(c.Linear(x, l.Weight.Tensor(), l.Bias.Tensor()))
	}
	backward := func(y, gradient *torch.Tensor) { c.Backward([]*torch.Tensor{y}, []*torch.Tensor{gradient}, false) }
	start := time.Now()
	for range cellSteps * cellChunks {
		// Forward of all stages and the loss; nothing is kept.
		c.SetGrad(false)
		c.MSE(stage(1, stage(0, b.input)), b.target, torch.ReduceMean)
		c.Close()
		// Recomputation and backward, the last stage first.
		c.SetGrad(true)
		backward(c.MSE(stage(1, b.hidden), b.target, torch.ReduceMean), b.lossGradient)
		b.hidden.SetGradOf(nil)
		backward(stage(0, b.input), b.outGradient)
		c.Close()
	}
	return perCell(start)
}
