package guide_test

import (
	"context"
	"errors"
	"fmt"

	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// picky panics where a programmer made a mistake.
type picky struct{ nn.Base }

func (l *picky) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	if c.MicroBatch == 2 {
		panic("no third micro-batch, please")
	}
	return x
}

func Example_failure() {
	model := nn.NewSequential().Add("a", nn.NewLinear(4, 8)).Add("b", nn.NewLinear(9, 2))
	p, err := pipe.New(model, pipe.Config{Balance: []int{1, 1}, Chunks: 2})
	check(err)
	defer nn.Free(model)
	defer p.Close()
	c := torch.NewCtx(torch.Options{})
	defer c.Close()

	_, err = p.Infer(ctx, pipe.Batch{Input: pipe.Rows(c.Ones(torch.Float32, 6, 4))})
	fmt.Println(err)
	var at *pipe.Error
	if errors.As(err, &at) {
		fmt.Println(at.Stage, at.MicroBatch, at.Layer, at.Direction)
	}
	// Output:
	// pipe: stage 1, micro-batch 0, layer "b", forward: penstock::linear(float32[3,8], float32[2,9], float32[2]): mat1 and mat2 shapes cannot be multiplied (3x8 and 9x2)
	// 1 0 b forward
}

func Example_panic() {
	p, err := pipe.New(nn.NewSequential(&picky{}), pipe.Config{Chunks: 4})
	check(err)
	defer p.Close()
	c := torch.NewCtx(torch.Options{})
	defer c.Close()

	_, err = p.Infer(ctx, pipe.Batch{Input: pipe.Rows(c.Ones(torch.Float32, 8, 1))})
	var at *pipe.Error
	var panicked *pipe.PanicError
	if errors.As(err, &at) && errors.As(err, &panicked) {
		fmt.Printf("micro-batch %d, layer %q: %v\n", at.MicroBatch, at.Layer, panicked.Value) // and panicked.Stack
	}
	result, err := p.Infer(ctx, pipe.Batch{Input: pipe.Rows(c.Ones(torch.Float32, 2, 1))}) // two rows are two micro-batches
	check(err)
	fmt.Println("the pipe works on:", c.Adopt(result.Output[0]))
	// Output:
	// micro-batch 2, layer "0": no third micro-batch, please
	// the pipe works on: float32[2,1]
}

func Example_cancel() {
	model := classifier()
	p, err := pipe.New(model, pipe.Config{Balance: []int{2, 3}, Chunks: 8})
	check(err)
	defer nn.Free(model)
	defer p.Close()
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	x, y := batch(c, 64)

	stopped, cancel := context.WithCancel(ctx)
	cancel() // or a deadline, or Ctrl-C by signal.NotifyContext
	_, err = p.Step(stopped, pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(y)}, nn.CrossEntropy())
	fmt.Println(errors.Is(err, context.Canceled))
	// Output:
	// true
}

func Example_orRestore() {
	c := torch.NewCtx(torch.Options{Grad: true})
	defer c.Close()
	norm := nn.NewBatchNorm1d(3, nn.BatchNormConfig{})
	model := nn.NewSequential(norm, nn.NewLinear(4, 2)) // which wants 4 features and gets 3
	nn.Materialise(c, nn.State(model), 1)
	defer nn.Free(model)
	x := c.Ones(torch.Float32, 8, 3)

	n := nn.NewCtx(c, nn.Config{Training: true})
	err := torch.Try(func() {
		nn.OrRestore(model, func() { model.Forward(n, x) })
	})
	fmt.Println(err != nil, torch.Item[int64](norm.NumBatchesTracked.Tensor()), "batches tracked")
	// Output:
	// true 0 batches tracked
}

func Example_tryAnOperator() {
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	err := torch.Try(func() { c.Add(c.Ones(torch.Float32, 2), c.Ones(torch.Float32, 3)) })
	var failed *torch.Error
	fmt.Println(errors.As(err, &failed), failed.Op, failed.Args)
	// Output:
	// true aten::add.Tensor [float32[2] float32[3]]
}
