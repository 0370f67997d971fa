package guide_test

import (
	"fmt"
	"os"

	"penstock.example/group"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/torch"
)

func Example_processes() {
	model := nn.NewSequential(nn.NewLinear(8, 16), nn.NewTanh(), nn.NewLinear(16, 1))
	defer nn.Free(model)
	config, several, err := group.FromEnvironment(os.Getenv) // as a launcher has set it
	check(err)
	var g *group.Group // nil is one process
	if several {
		g, err = group.Join(ctx, config) // waits for all
		check(err)
	}
	p, err := pipe.New(model, pipe.Config{Balance: []int{2, 1}, Chunks: 4, Seed: 1, Group: g})
	check(err)
	sgd, err := optim.SGD(optim.Config{LR: 0.1})
	check(err)
	defer sgd.Close()
	c := torch.NewCtx(torch.Options{Seed: 1})
	defer c.Close()
	x, y := c.Randn(32, 8), c.Randn(32, 1)
	result, err := p.Step(ctx, pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(y)}, nn.MSE())
	check(err)
	check(p.Update(ctx, sgd))
	if g == nil || g.Rank() == 0 {
		fmt.Printf("loss %.3f\n", result.Loss)
	}
	check(p.Close())
	if g != nil {
		check(g.Close())
	}
	// Output:
	// loss 1.165
}
