package guide_test

import (
	"fmt"

	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// classifier returns a model of five layers, from 64 numbers to the logits of ten classes.
func classifier() *nn.Sequential {
	return nn.NewSequential(
		nn.NewLinear(64, 256), nn.NewReLU(),
		nn.NewLinear(256, 256), nn.NewReLU(),
		nn.NewLinear(256, 10))
}

// batch returns random inputs for the classifier, and their classes.
func batch(c *torch.Ctx, rows int64) (x, y *torch.Tensor) {
	labels := make([]int64, rows)
	for i := range labels {
		labels[i] = int64(i % 10)
	}
	return c.Randn(rows, 64), torch.From(c, labels)
}

func Example_model() {
	model := classifier()
	p, err := pipe.New(model, pipe.Config{Balance: []int{2, 3}, Chunks: 8, Seed: 1})
	check(err)
	defer nn.Free(model)
	defer p.Close()
	sgd, err := optim.SGD(optim.Config{LR: 0.1, Momentum: 0.9})
	check(err)
	defer sgd.Close()

	c := torch.NewCtx(torch.Options{Seed: 2}) // owns the batch
	defer c.Close()
	x, y := batch(c, 100) // 100 rows of 64 numbers, and their classes
	input, target := pipe.Rows(x), pipe.Rows(y)
	for step := range int64(30) {
		result, err := p.Step(ctx, pipe.Batch{Input: input, Target: target}, nn.CrossEntropy())
		check(err)
		check(p.Update(ctx, sgd))
		if step%29 == 0 {
			fmt.Printf("step %d: loss %.1f, %d micro-batches\n", step, result.Loss, result.MicroBatches)
		}
	}
	// Output:
	// step 0: loss 2.3, 8 micro-batches
	// step 29: loss 0.0, 8 micro-batches
}
