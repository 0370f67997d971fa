package guide_test

import (
	"fmt"

	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// absolute is the mean of |output - target|, smoothed at zero.
type absolute struct{}

func (absolute) Forward(c *nn.Ctx, output, target *torch.Tensor) *torch.Tensor {
	d := c.Sub(output, target)
	return c.Mean(c.Sqrt(c.AddScalar(c.Mul(d, d), 1e-12)))
}

func (absolute) Reduction() torch.Reduction { return torch.ReduceMean }

func Example_loss() {
	model := nn.NewSequential(nn.NewReLU())
	p, err := pipe.New(model, pipe.Config{Chunks: 2})
	check(err)
	defer p.Close()
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	x := torch.From(c, []float32{1, 2, 3}, 3, 1) // micro-batches of 2 rows and of 1
	result, err := p.Step(ctx, pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(c.Zeros(torch.Float32, 3, 1))}, absolute{})
	check(err)
	fmt.Printf("%.4f\n", result.Loss)
	// Output:
	// 2.0000
}

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
	y := run.Output()[0] // [32, 10], of the whole batch
	similarity := c.Matmul(y, c.Transpose(y, 0, 1))
	loss := c.Mean(c.Mul(similarity, similarity)) // every row with every other
	c.Backward([]*torch.Tensor{loss}, []*torch.Tensor{nil}, false)
	check(run.Backward(ctx))
	fmt.Println(run.MicroBatches(), "micro-batches;", model.Layers()[0].State()[0].Tensor().HasGrad())
	// Output:
	// 8 micro-batches; true
}

func Example_retained() {
	model := nn.NewSequential(nn.NewLinear(4, 8), nn.NewTanh(), nn.NewLinear(8, 2))
	p, err := pipe.New(model, pipe.Config{Balance: []int{1, 2}, Chunks: 2})
	check(err)
	defer nn.Free(model)
	defer p.Close()
	c := torch.NewCtx(torch.Options{})
	defer c.Close()

	run, err := p.Forward(ctx, pipe.Batch{Input: pipe.Rows(c.Ones(torch.Float32, 6, 4))})
	check(err)
	defer run.Close()
	for class := range int64(2) {
		one := c.Zeros(torch.Float32, 6, 2)
		c.Fill_(c.Narrow(one, 1, class, 1), 1)
		check(run.BackwardRetained(ctx, one)) // the gradient of one class's logits
		fmt.Println("class", class, torch.Values[float32](c.GradOf(nn.Params(model)[3].Tensor())))
		nn.ZeroGrads(model)
	}
	// Output:
	// class 0 [6 0]
	// class 1 [0 6]
}

func Example_inputGradient() {
	p, err := pipe.New(nn.NewSequential(nn.NewReLU()), pipe.Config{Chunks: 2})
	check(err)
	defer p.Close()
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	x := torch.From(c, []float32{-1, 2}, 2, 1).SetRequiresGrad(true)
	_, err = p.Step(ctx, pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(c.Zeros(torch.Float32, 2, 1))}, nn.MSE().Sum())
	check(err)
	fmt.Println(torch.Values[float32](c.GradOf(x)))
	// Output:
	// [0 4]
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
