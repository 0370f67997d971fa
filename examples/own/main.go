// Command own pipelines a model of one's own over two stages and trains it on random numbers.
package main

import (
	"context"
	"fmt"
	"log"

	"penstock/nn"
	"penstock/optim"
	"penstock/pipe"
	"penstock/torch"
)

func main() {
	model := nn.NewSequential(nn.NewLinear(64, 512), nn.NewReLU(), nn.NewLinear(512, 512), nn.NewReLU(), nn.NewLinear(512, 1))
	p, err := pipe.New(model, pipe.Config{Balance: []int{2, 3}, Chunks: 4}) // 2 layers on cpu:0, 3 on cpu:1
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close()
	sgd, err := optim.SGD(optim.Config{LR: 0.05, Momentum: 0.9})
	if err != nil {
		log.Fatal(err)
	}
	c := torch.NewCtx(torch.Options{Seed: 1}) // owns the batch
	defer c.Close()
	x, y := c.Normal_(c.Empty(torch.Float32, 128, 64), 0, 1), c.Normal_(c.Empty(torch.Float32, 128, 1), 0, 1)
	for step := range int64(20) {
		result, err := p.Step(context.Background(), pipe.Batch{Input: x, Target: y, Step: step}, nn.NewMSELoss(nn.MSEConfig{}))
		if err != nil {
			log.Fatal(err) // such as: pipe: stage 1, micro-batch 2, layer "4", backward: ...
		}
		if err := p.Update(context.Background(), sgd); err != nil { // all stages or none
			log.Fatal(err)
		}
		fmt.Printf("step %2d  loss %.4f  most bytes on cpu:1 %d\n", step, result.Loss, torch.CPU(1).Memory().Peak)
	}
}
