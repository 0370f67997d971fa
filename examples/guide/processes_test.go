package guide_test

import (
	"context"
	"fmt"
	"os"
	"sync"

	"penstock.example/group"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// join is the group of this process and the others that a launcher has started, or nil.
func join(ctx context.Context) *group.Group {
	config, several, err := group.FromEnvironment(os.Getenv)
	check(err)
	if !several {
		return nil
	}
	g, err := group.Join(ctx, config) // waits for all
	check(err)
	return g
}

func Example_processes() {
	g := join(ctx)
	model := nn.NewSequential(nn.NewLinear(8, 16), nn.NewTanh(), nn.NewLinear(16, 1))
	defer nn.Free(model)
	p, err := pipe.New(model, pipe.Config{Balance: []int{2, 1}, Chunks: 4, Seed: 1, Group: g})
	check(err)
	sgd, err := optim.SGD(optim.Config{LR: 0.1})
	check(err)
	defer sgd.Close()
	c := torch.NewCtx(torch.Options{Seed: 1})
	defer c.Close()
	result, err := p.Step(ctx, pipe.Batch{Input: pipe.Rows(c.Randn(32, 8)), Target: pipe.Rows(c.Randn(32, 1))}, nn.MSE())
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

func Example_replicas() {
	var all sync.WaitGroup
	for rank, g := range group.Local(2) {
		all.Go(func() {
			model := nn.NewSequential(nn.NewLinear(8, 16), nn.NewTanh(), nn.NewLinear(16, 1))
			defer nn.Free(model)
			p, err := pipe.New(model, pipe.Config{Balance: []int{2, 1}, Chunks: 2, Seed: 1, Group: g, Replicas: 2})
			check(err)
			sgd, err := optim.SGD(optim.Config{LR: 0.1})
			check(err)
			defer sgd.Close()
			c := torch.NewCtx(torch.Options{Seed: 1})
			defer c.Close()
			result, err := p.Step(ctx, pipe.Batch{Input: pipe.Rows(c.Randn(32, 8)), Target: pipe.Rows(c.Randn(32, 1))}, nn.MSE())
			check(err)
			check(p.Update(ctx, sgd))
			if rank == 0 {
				fmt.Printf("%v, loss %.3f\n", p.Devices(), result.Loss)
			}
			check(p.Close())
			check(g.Close())
		})
	}
	all.Wait()
	// Output:
	// [cpu:0 cpu:1], loss 1.165
}
