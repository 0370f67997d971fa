package guide_test

import (
	"context"
	"errors"
	"fmt"

	"penstock.example/autoremat"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/torch"
)

func Example_forwardBackward() {
	model := classifier()
	p, err := pipe.New(model, pipe.Config{Balance: []int{2, 3}, Chunks: 8})
	check(err)
	defer nn.Free(model)
	defer p.Close()
	c := torch.NewCtx(torch.Options{Grad: true})
	defer c.Close()
	x, _ := batch(c, 32)

	run, err := p.Forward(ctx, pipe.Batch{Input: pipe.Rows(x)})
	check(err)
	defer run.Close()
	y := run.Output()[0] // [32, 10], the whole batch; c is torch.NewCtx(torch.Options{Grad: true})
	similarity := c.Matmul(y, c.Transpose(y, 0, 1))
	loss := c.Mean(c.Mul(similarity, similarity))
	c.Backward([]*torch.Tensor{loss}, []*torch.Tensor{nil}, false)
	check(run.Backward(ctx))
	fmt.Println(run.MicroBatches(), "micro-batches;", nn.Params(model)[0].Tensor().HasGrad())
	// Output:
	// 8 micro-batches; true
}

func Example_inference() {
	model := nn.NewSequential(nn.NewLinear(4, 8), nn.NewDropout(0.5), nn.NewLinear(8, 2))
	p, err := pipe.New(model, pipe.Config{Balance: []int{2, 1}, Chunks: 4})
	check(err)
	defer nn.Free(model)
	defer p.Close()
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	result, err := p.Infer(ctx, pipe.Batch{Input: pipe.Rows(c.Ones(torch.Float32, 10, 4))})
	check(err)
	y := result.Output[0]
	fmt.Println(y, "requires a gradient:", y.RequiresGrad())
	y.Free() // or c.Adopt(y)
	// Output:
	// float32[10,2] requires a gradient: false
}

func Example_module() {
	model := mlp()
	c := torch.NewCtx(torch.Options{Threads: 1, Grad: true})
	defer c.Close()
	nn.Materialise(c, nn.State(model), 1)
	defer nn.Free(model)
	adam, err := optim.Adam(optim.Config{})
	check(err)
	defer adam.Close()

	m, err := autoremat.New(model, autoremat.Config{Limit: 16 << 20, Optimizer: adam})
	check(err)
	defer m.Close()
	loss := nn.MSE()
	for step := range 2 {
		mark := c.Mark()
		torch.CPU(0).ResetPeak()
		x := c.Ones(torch.Float32, 1024, 256)
		n := nn.NewCtx(c, nn.Config{Training: true, Seed: uint64(step)})
		c.Backward([]*torch.Tensor{loss.Forward(n, m.Forward(n, x), x)}, []*torch.Tensor{nil}, false)
		adam.Step(c, nn.Params(model))
		predicted, measured := m.Predicted(), torch.CPU(0).Memory().Peak
		if step > 0 { // the first step has measured the loss
			fmt.Println("within the limit:", predicted <= 16<<20, "at most as predicted:", measured <= predicted)
		}
		nn.ZeroGrads(model)
		c.Release(mark)
	}
	// Output:
	// within the limit: true at most as predicted: true
}

func Example_failure() {
	model := nn.NewSequential().Add("a", nn.NewLinear(4, 8)).Add("b", nn.NewLinear(9, 2))
	p, err := pipe.New(model, pipe.Config{Balance: []int{1, 1}, Chunks: 2})
	check(err)
	defer nn.Free(model)
	defer p.Close()
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	x := pipe.Rows(c.Ones(torch.Float32, 6, 4))

	_, err = p.Infer(ctx, pipe.Batch{Input: x})
	var at *pipe.Error
	if errors.As(err, &at) {
		fmt.Println(at.Stage, at.MicroBatch, at.Layer, at.Direction)
	}

	stopped, cancel := context.WithCancel(ctx)
	cancel() // or a deadline, or Ctrl-C by signal.NotifyContext
	_, err = p.Infer(stopped, pipe.Batch{Input: x})
	fmt.Println(errors.Is(err, context.Canceled))
	// Output:
	// 1 0 b forward
	// true
}
