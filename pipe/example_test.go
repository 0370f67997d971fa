package pipe_test

import (
	"context"
	"fmt"
	"log"

	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// A model of three layers, cut after the second, learns to give the sum of its inputs.
func Example() {
	model := nn.NewSequential(nn.NewLinear(4, 16), nn.NewTanh(), nn.NewLinear(16, 1))
	defer nn.Free(model)
	p, err := pipe.New(model, pipe.Config{Balance: []int{2, 1}, Chunks: 4, Seed: 1})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close()
	sgd, err := optim.SGD(optim.Config{LR: 0.1})
	if err != nil {
		log.Fatal(err)
	}
	defer sgd.Close()
	c := torch.NewCtx(torch.Options{Seed: 1}) // owns the batch
	defer c.Close()
	x := c.Randn(32, 4)
	y := c.Matmul(x, c.Ones(torch.Float32, 4, 1))
	var losses []float64
	for range 50 {
		result, err := p.Step(context.Background(),
			pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(y)}, nn.MSE())
		if err != nil {
			log.Fatal(err)
		}
		if err := p.Update(context.Background(), sgd); err != nil {
			log.Fatal(err)
		}
		losses = append(losses, result.Loss)
	}
	fmt.Println("the loss fell to less than a tenth:", losses[49] < losses[0]/10)
	// Output:
	// the loss fell to less than a tenth: true
}
