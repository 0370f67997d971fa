// Command own trains a model of one's own on random numbers, in a pipeline of two stages.
package main

import (
	"context"
	"fmt"
	"log"

	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/torch"
)

func main() {
	ctx := context.Background()
	c := torch.NewCtx(torch.Options{Seed: 1}) // owns the batch
	defer c.Close()
	x, y := pipe.Rows(c.Randn(128, 64)), pipe.Rows(c.Randn(128, 1))

	model := nn.NewSequential(nn.NewLinear(64, 512), nn.NewReLU(), nn.NewLinear(512, 1))
	p, err := pipe.New(model, pipe.Config{Balance: []int{2, 1}, Chunks: 4}) // on cpu:0 and cpu:1
	check(err)
	sgd, err := optim.SGD(optim.Config{LR: 0.03})
	check(err)
	for step := range int64(5) {
		result, err := p.Step(ctx, pipe.Batch{Input: x, Target: y}, nn.MSE())
		check(err) // such as: pipe: stage 1, micro-batch 2, layer "2", backward: ...
		check(p.Update(ctx, sgd))
		fmt.Printf("step %d  loss %.3f\n", step, result.Loss)
	}

	sgd.Close()
	check(p.Close())
	nn.Free(model)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
