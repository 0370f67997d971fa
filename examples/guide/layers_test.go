package guide_test

import (
	"fmt"

	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// block adds the output of two linear layers to its input.
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

// counter counts the micro-batches of training.
type counter struct {
	nn.Base
	seen *nn.Param
}

func (l *counter) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	if c.Training && !c.Recomputing {
		c.NoGrad(func() { c.AddInt_(l.seen.Tensor(), 1) }) // l.Buffer("seen", torch.Int64, nn.Zeros)
	}
	return x
}

func Example_layer() {
	layer := &counter{}
	layer.seen = layer.Buffer("seen", torch.Int64, nn.Zeros)
	model := nn.NewSequential(layer, newBlock(4))
	p, err := pipe.New(model, pipe.Config{Chunks: 4, Checkpoint: pipe.Always})
	check(err)
	defer nn.Free(model)
	defer p.Close()
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	x := pipe.Rows(c.Ones(torch.Float32, 8, 4))
	_, err = p.Step(ctx, pipe.Batch{Input: x, Target: x}, nn.MSE())
	check(err)
	fmt.Println("seen", torch.Item[int64](layer.seen.Tensor()))
	// Output:
	// seen 4
}

// mix takes three tensors and gives two.
type mix struct{ nn.Base }

func (l *mix) forward(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor { // nn.Tuple(l, l.forward)
	a, b, table := xs[0], xs[1], xs[2]
	return []*torch.Tensor{c.Add(a, table), c.Mul(a, b)}
}

// difference takes two tensors and gives one.
type difference struct{ nn.Base }

func (l *difference) forward(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
	return []*torch.Tensor{c.Sub(xs[0], xs[1])}
}

func Example_tuples() {
	l, last := &mix{}, &difference{}
	model := nn.NewSequential(nn.Tuple(l, l.forward), nn.Tuple(last, last.forward))
	p, err := pipe.New(model, pipe.Config{Balance: []int{1, 1}, Chunks: 2})
	check(err)
	defer p.Close()
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	a := torch.From(c, []float32{1, 2, 3, 4}, 4, 1)
	b := torch.From(c, []float32{5, 6, 7, 8}, 4, 1)
	table := torch.From(c, []float32{10, 20, 30}, 1, 3)
	result, err := p.Infer(ctx, pipe.Batch{Input: append(pipe.Rows(a, b), pipe.NoChunk(table)...)})
	check(err)
	y := c.Adopt(result.Output[0])
	fmt.Println(y, torch.Values[float32](y))
	// Output:
	// float32[4,3] [6 16 26 0 10 20 -8 2 12 -18 -8 2]
}

// encoder stashes its output for a later decoder.
type encoder struct {
	nn.Base
	linear *nn.Linear
}

func newEncoder(in, out int64) *encoder {
	l := &encoder{linear: nn.NewLinear(in, out)}
	l.Child("linear", l.linear)
	l.Stashes("skip")
	return l
}

func (l *encoder) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	y := c.Run(x, l.linear)
	c.Stash("skip", y)
	return y
}

// decoder adds what the encoder stashed.
type decoder struct {
	nn.Base
	linear *nn.Linear
}

func newDecoder(in, out int64) *decoder {
	l := &decoder{linear: nn.NewLinear(in, out)}
	l.Child("linear", l.linear)
	l.Pops("skip")
	return l
}

func (l *decoder) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	return c.Add(c.Run(x, l.linear), c.Pop("skip"))
}

func Example_skips() {
	pair := func(n int64) (*encoder, *decoder) {
		e, d := newEncoder(n, n), newDecoder(n, n)
		space := nn.NewNamespace()
		e.Isolate(space)
		d.Isolate(space)
		return e, d
	}
	e1, d1 := pair(8)
	e2, d2 := pair(8)
	unet := nn.NewSequential(e1, e2, nn.NewLinear(8, 8), d2, d1)
	routes, err := unet.SkipRoutes()
	check(err)
	for _, r := range routes {
		fmt.Println("layer", r.Stash, "to layers", r.Pops)
	}
	fmt.Println(nn.VerifySkips(nn.NewSequential(newEncoder(8, 8), newEncoder(8, 8), newDecoder(8, 8))))

	p, err := pipe.New(unet, pipe.Config{Balance: []int{2, 1, 2}, Chunks: 2})
	check(err)
	defer nn.Free(unet)
	defer p.Close()
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	x := pipe.Rows(c.Ones(torch.Float32, 6, 8))
	_, err = p.Step(ctx, pipe.Batch{Input: x, Target: x}, nn.MSE())
	check(err)
	// Output:
	// layer 0 to layers [4]
	// layer 1 to layers [3]
	// nn: the model's skip connections do not match:
	//   * "0" and "1" both stash "skip"; Isolate one in a namespace of its own, with the layers that pop it
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
	for i, s := range p.Stages() {
		for _, param := range s.Params() {
			fmt.Println("stage", i, param.Name)
		}
	}
	fmt.Println(nn.Count(model), "parameters")
	// Output:
	// stage 0 embed.weight
	// stage 1 hidden.weight
	// stage 1 hidden.bias
	// 1872 parameters
}
