package guide_test

import (
	"fmt"

	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

func Example_autocast() {
	model := classifier()
	p, err := pipe.New(model, pipe.Config{Balance: []int{2, 3}, Chunks: 4, Autocast: torch.AutocastBFloat16})
	check(err)
	defer nn.Free(model)
	defer p.Close()
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	x, y := batch(c, 16)

	result, err := p.Infer(ctx, pipe.Batch{Input: pipe.Rows(x)})
	check(err)
	fmt.Println("logits", c.Adopt(result.Output[0]).DType())
	_, err = p.Step(ctx, pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(y)}, nn.CrossEntropy())
	check(err)
	weight := nn.Params(model)[0].Tensor()
	fmt.Println("weight", weight.DType(), "gradient", c.GradOf(weight).DType())
	// Output:
	// logits bfloat16
	// weight float32 gradient float32
}

func Example_convert() {
	model := classifier()
	p, err := pipe.New(model, pipe.Config{Balance: []int{2, 3}})
	check(err)
	defer nn.Free(model)
	defer p.Close()
	check(p.Convert(ctx, torch.Float64))
	fmt.Println(nn.Params(model)[0].Tensor())
	// Output:
	// float64[256,64]
}
