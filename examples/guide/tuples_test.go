package guide_test

import (
	"fmt"

	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// mix takes three tensors and gives two.
type mix struct{ nn.Base }

func newMix() nn.Layer {
	l := &mix{}
	return nn.Tuple(l, l.forward)
}

func (l *mix) forward(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
	a, b, table := xs[0], xs[1], xs[2]
	return []*torch.Tensor{c.Add(a, table), c.Mul(a, b)}
}

// difference takes two tensors and gives one.
type difference struct{ nn.Base }

func newDifference() nn.Layer {
	l := &difference{}
	return nn.Tuple(l, l.forward)
}

func (l *difference) forward(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
	return []*torch.Tensor{c.Sub(xs[0], xs[1])}
}

func Example_tuples() {
	model := nn.NewSequential(newMix(), newDifference())
	p, err := pipe.New(model, pipe.Config{Balance: []int{1, 1}, Chunks: 2})
	check(err)
	defer p.Close()

	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	a := torch.From(c, []float32{1, 2, 3, 4}, 4, 1)
	b := torch.From(c, []float32{5, 6, 7, 8}, 4, 1)
	table := torch.From(c, []float32{10, 20, 30}, 1, 3) // every micro-batch gets all of it
	result, err := p.Infer(ctx, pipe.Batch{Input: append(pipe.Rows(a, b), pipe.NoChunk(table)...)})
	check(err)
	y := c.Adopt(result.Output[0])
	fmt.Println(y, torch.Values[float32](y))
	// Output:
	// float32[4,3] [6 16 26 0 10 20 -8 2 12 -18 -8 2]
}

// temperature goes with a batch to every layer that asks.
var temperature = nn.NewExtra[float64]("temperature")

// cool divides by the batch's temperature.
type cool struct{ nn.Base }

func (l *cool) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	return c.MulScalar(x, 1/temperature.In(c))
}

func Example_extras() {
	p, err := pipe.New(nn.NewSequential(&cool{}), pipe.Config{})
	check(err)
	defer p.Close()
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	b := pipe.Batch{Input: pipe.Rows(torch.From(c, []float32{1, 2}, 2, 1)), Extras: []nn.Extra{temperature.With(0.5)}}
	result, err := p.Infer(ctx, b)
	check(err)
	fmt.Println(torch.Values[float32](c.Adopt(result.Output[0])))
	// Output:
	// [2 4]
}

func Example_call() {
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	x := torch.From(c, []float32{1, 2, 3})
	sums := c.Call("aten::cumsum", "", x, 0)[0].(*torch.Tensor)
	fmt.Println(torch.Values[float32](sums))
	// Output:
	// [1 3 6]
}
