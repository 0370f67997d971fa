package guide_test

import (
	"fmt"

	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// classifier is a model to be cut: five layers, logits of ten classes.
func classifier() *nn.Sequential {
	return nn.NewSequential(
		nn.NewLinear(64, 256), nn.NewReLU(),
		nn.NewLinear(256, 256), nn.NewReLU(),
		nn.NewLinear(256, 10))
}

// batch makes random images and labels for it.
func batch(c *torch.Ctx, rows int64) (x, y *torch.Tensor) {
	labels := make([]int64, rows)
	for i := range labels {
		labels[i] = int64(i % 10)
	}
	return c.Randn(rows, 64), torch.From(c, labels)
}

func Example_apply() {
	model := classifier()
	p, err := pipe.New(model, pipe.Config{Balance: []int{2, 3}, Chunks: 8, Seed: 1})
	check(err)
	defer nn.Free(model)
	defer p.Close()

	for i, s := range p.Stages() {
		fmt.Printf("stage %d on %v:", i, s.Device)
		for _, l := range s.Layers {
			fmt.Printf(" %s", l.Name)
		}
		fmt.Println()
	}
	// Output:
	// stage 0 on cpu:0: 0 1
	// stage 1 on cpu:1: 2 3 4
}

func Example_train() {
	model := classifier()
	p, err := pipe.New(model, pipe.Config{Balance: []int{2, 3}, Chunks: 8, Seed: 1})
	check(err)
	defer nn.Free(model)
	defer p.Close()

	sgd, err := optim.SGD(optim.Config{LR: 0.1, Momentum: 0.9})
	check(err)
	defer sgd.Close()

	c := torch.NewCtx(torch.Options{Seed: 2})
	defer c.Close()
	x, y := batch(c, 100)
	loss := nn.CrossEntropy()
	var first, last pipe.Result
	for step := range int64(30) {
		last, err = p.Step(ctx, pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(y), Step: step}, loss)
		check(err)
		check(p.Update(ctx, sgd))
		if step == 0 {
			first = last
		}
	}
	fmt.Println(last.MicroBatches, "micro-batches; the loss fell to less than a tenth:", last.Loss < first.Loss/10)
	// Output:
	// 8 micro-batches; the loss fell to less than a tenth: true
}

func Example_devices() {
	model := classifier()
	p, err := pipe.New(model, pipe.Config{
		Balance: []int{2, 3},
		Devices: []torch.Device{torch.CPU(3), torch.CPU(2)},
	})
	check(err)
	defer nn.Free(model)
	defer p.Close()

	devices := p.Devices()
	in := torch.NewCtx(torch.Options{Device: devices[0]})
	defer in.Close()
	out := torch.NewCtx(torch.Options{Device: devices[len(devices)-1]})
	defer out.Close()
	x := in.Zeros(torch.Float32, 16, 64)
	y := out.Zeros(torch.Int64, 16)

	_, err = p.Step(ctx, pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(y)}, nn.CrossEntropy())
	check(err)
	fmt.Println("input on", in.Device(), "and target on", out.Device())
	// Output:
	// input on cpu:3 and target on cpu:2
}

func Example_nested() {
	block := func() *nn.Sequential { return nn.NewSequential(nn.NewLinear(8, 8), nn.NewTanh()) }
	model := nn.NewSequential().Add("stem", nn.NewLinear(4, 8)).Add("one", block()).Add("two", block())
	p, err := pipe.New(model, pipe.Config{Balance: []int{2, 3}}) // cuts block one
	check(err)
	defer nn.Free(model)
	defer p.Close()

	for i, s := range p.Stages() {
		for _, l := range s.Layers {
			fmt.Println("stage", i, "layer", l.Name)
		}
	}
	// Output:
	// stage 0 layer stem
	// stage 0 layer one.0
	// stage 1 layer one.1
	// stage 1 layer two.0
	// stage 1 layer two.1
}

func Example_modelParallelism() {
	model := classifier()
	p, err := pipe.New(model, pipe.Config{Balance: []int{2, 3}, Chunks: 1, Checkpoint: pipe.Never})
	check(err)
	defer nn.Free(model)
	defer p.Close()
	fmt.Println(p.Config().Chunks, p.Config().Checkpoint)
	// Output:
	// 1 never
}
