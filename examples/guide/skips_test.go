package guide_test

import (
	"fmt"

	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// fork keeps a copy of its input beside its output.
type fork struct {
	nn.Base
	linear *nn.Linear
}

func newFork(n int64) nn.Layer {
	l := &fork{linear: nn.NewLinear(n, n)}
	l.Child("linear", l.linear)
	return nn.Tuple(l, l.forward)
}

func (l *fork) forward(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
	return []*torch.Tensor{c.Run(xs[0], l.linear), xs[0]}
}

// sum adds what fork kept.
type sum struct{ nn.Base }

func newSum() nn.Layer {
	l := &sum{}
	return nn.Tuple(l, l.forward)
}

func (l *sum) forward(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
	return []*torch.Tensor{c.Add(xs[0], xs[1])}
}

func Example_shortSkip() {
	model := nn.NewSequential(newFork(4), newSum())
	p, err := pipe.New(model, pipe.Config{Balance: []int{1, 1}, Chunks: 2})
	check(err)
	defer nn.Free(model)
	defer p.Close()
	for _, param := range nn.Params(model) {
		fmt.Println(param.Name)
	}
	// Output:
	// 0.linear.weight
	// 0.linear.bias
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

func Example_longSkip() {
	model := nn.NewSequential(newEncoder(4, 8), nn.NewTanh(), nn.NewLinear(8, 8), nn.NewTanh(), newDecoder(8, 8))
	p, err := pipe.New(model, pipe.Config{Balance: []int{1, 1, 2, 1}, Chunks: 2, Record: true})
	check(err)
	defer nn.Free(model)
	defer p.Close()

	c := torch.NewCtx(torch.Options{Seed: 1})
	defer c.Close()
	x, y := c.Ones(torch.Float32, 6, 4), c.Ones(torch.Float32, 6, 8)
	result, err := p.Step(ctx, pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(y)}, nn.MSE())
	check(err)
	for _, e := range result.Timeline.Events {
		if a := e.Action; a.Kind == schedule.ReceiveActivation && a.Peer != a.Stage-1 {
			fmt.Println(a)
		}
	}
	// Output:
	// 0>3F0
	// 0>3F1
}

func Example_namespaces() {
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
	// Output:
	// layer 0 to layers [4]
	// layer 1 to layers [3]
	// nn: the model's skip connections do not match:
	//   * "0" and "1" both stash "skip"; Isolate one in a namespace of its own, with the layers that pop it
}

// maybe stashes its input for some batches and nothing for others.
type maybe struct{ nn.Base }

func newMaybe() *maybe {
	l := &maybe{}
	l.Stashes("hint")
	return l
}

func (l *maybe) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	if x.Size(1) > 2 {
		c.Stash("hint", x)
	} else {
		c.Stash("hint", nil)
	}
	return x
}

// hinted doubles what it gets where there is a hint.
type hinted struct{ nn.Base }

func newHinted() *hinted {
	l := &hinted{}
	l.Pops("hint")
	return l
}

func (l *hinted) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	if hint := c.Pop("hint"); hint != nil {
		return c.Add(x, hint)
	}
	return x
}

func Example_absentSkip() {
	p, err := pipe.New(nn.NewSequential(newMaybe(), newHinted()), pipe.Config{Balance: []int{1, 1}})
	check(err)
	defer p.Close()
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	for _, x := range []*torch.Tensor{torch.From(c, []float32{1, 2}, 1, 2), torch.From(c, []float32{1, 2, 3}, 1, 3)} {
		result, err := p.Infer(ctx, pipe.Batch{Input: pipe.Rows(x)})
		check(err)
		fmt.Println(torch.Values[float32](c.Adopt(result.Output[0])))
	}
	// Output:
	// [1 2]
	// [2 4 6]
}
