package guide_test

import (
	"fmt"

	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// counter counts the micro-batches it has seen in training.
type counter struct {
	nn.Base
	seen *nn.Param
}

func newCounter() *counter {
	l := &counter{}
	l.seen = l.Buffer("seen", torch.Int64, nn.Zeros)
	return l
}

func (l *counter) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	if c.Training && !c.Recomputing {
		c.NoGrad(func() { c.AddInt_(l.seen.Tensor(), 1) })
	}
	return x
}

func Example_recomputation() {
	layer := newCounter()
	model := nn.NewSequential(layer, nn.NewLinear(4, 1))
	p, err := pipe.New(model, pipe.Config{Chunks: 4, Checkpoint: pipe.Always})
	check(err)
	defer nn.Free(model)
	defer p.Close()
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	_, err = p.Step(ctx, pipe.Batch{Input: pipe.Rows(c.Ones(torch.Float32, 8, 4)), Target: pipe.Rows(c.Ones(torch.Float32, 8, 1))}, nn.MSE())
	check(err)
	fmt.Println("seen", torch.Item[int64](layer.seen.Tensor()))
	// Output:
	// seen 4
}

func Example_deferredBatchNorm() {
	for _, deferred := range []bool{false, true} {
		norm := nn.NewBatchNorm1d(1, nn.BatchNormConfig{NoAffine: true})
		p, err := pipe.New(nn.NewSequential(norm), pipe.Config{Chunks: 2, DeferredBatchNorm: deferred})
		check(err)
		c := torch.NewCtx(torch.Options{})
		x := torch.From(c, []float32{0, 2, 4, 6}, 4, 1) // micro-batches 0 2 and 4 6
		_, err = p.Step(ctx, pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(x)}, nn.MSE())
		check(err)
		fmt.Printf("deferred %-5v  mean %.3f  variance %.3f  batches %d\n", deferred, torch.Values[float32](norm.RunningMean.Tensor())[0],
			torch.Values[float32](norm.RunningVar.Tensor())[0], torch.Item[int64](norm.NumBatchesTracked.Tensor()))
		c.Close()
		p.Close()
		nn.Free(norm)
	}
	// Output:
	// deferred false  mean 0.590  variance 1.190  batches 2
	// deferred true   mean 0.300  variance 1.567  batches 1
}

func Example_tied() {
	embed := nn.NewEmbedding(100, 16, nn.EmbeddingConfig{})
	model := nn.NewSequential().
		Add("embed", embed).
		Add("hidden", nn.NewLinear(16, 16)).
		Add("head", nn.NewLinearShared(embed.Weight, false))
	p, err := pipe.New(model, pipe.Config{Balance: []int{1, 2}, Chunks: 2})
	check(err)
	defer nn.Free(model)
	defer p.Close()

	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	x, y := torch.From(c, []int64{1, 2, 3, 4}), torch.From(c, []int64{2, 3, 4, 5})
	_, err = p.Step(ctx, pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(y)}, nn.CrossEntropy())
	check(err)
	for i, s := range p.Stages() {
		for _, param := range s.Params() {
			fmt.Println("stage", i, param.Name, c.GradOf(param.Tensor()))
		}
	}
	fmt.Println(nn.Count(model), "parameters")
	// Output:
	// stage 0 embed.weight float32[100,16]
	// stage 1 hidden.weight float32[16,16]
	// stage 1 hidden.bias float32[16]
	// 1872 parameters
}

func Example_policies() {
	model := classifier()
	p, err := pipe.New(model, pipe.Config{
		Balance:    []int{2, 3},
		Chunks:     8,
		Checkpoint: pipe.PerStage(pipe.Always, pipe.Never),
	})
	check(err)
	defer nn.Free(model)
	defer p.Close()
	fmt.Println(p.Config().Checkpoint)
	// Output:
	// always,never
}

// block checkpoints a part of its own forward.
type block struct {
	nn.Base
	in, out *nn.Linear
}

func newBlock(n int64) *block {
	l := &block{in: nn.NewLinear(n, 4*n), out: nn.NewLinear(4*n, n)}
	l.Child("in", l.in)
	l.Child("out", l.out)
	return l
}

func (l *block) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	wide := c.Checkpoint(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
		return []*torch.Tensor{c.GELU(c.Run(xs[0], l.in), "tanh")}
	}, x)
	return c.Add(x, c.Run(wide[0], l.out))
}

func Example_checkpointWithoutPipe() {
	model := nn.NewSequential(nn.Checkpointed(nn.NewSequential(nn.NewLinear(4, 64), nn.NewTanh(), nn.NewLinear(64, 4))), newBlock(4))
	c := torch.NewCtx(torch.Options{Grad: true})
	defer c.Close()
	nn.Materialise(c, nn.State(model), 1)
	defer nn.Free(model)

	y := model.Forward(nn.NewCtx(c, nn.Config{Training: true}), c.Ones(torch.Float32, 32, 4))
	c.Backward([]*torch.Tensor{c.Mean(y)}, []*torch.Tensor{nil}, false)
	for _, p := range nn.Params(model) {
		fmt.Println(p.Name, p.Tensor().HasGrad())
	}
	// Output:
	// 0.0.weight true
	// 0.0.bias true
	// 0.2.weight true
	// 0.2.bias true
	// 1.in.weight true
	// 1.in.bias true
	// 1.out.weight true
	// 1.out.bias true
}
