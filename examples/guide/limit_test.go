package guide_test

import (
	"errors"
	"fmt"

	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/plan"
	"penstock.example/torch"
)

// mlp returns eight times Linear and Tanh.
func mlp() *nn.Sequential {
	model := nn.NewSequential()
	for i := range 8 {
		model.Add(fmt.Sprint(i), nn.NewSequential(nn.NewLinear(256, 256), nn.NewTanh()))
	}
	return model
}

func Example_limit() {
	model := mlp()
	p, err := pipe.New(model, pipe.Config{Chunks: 2, Checkpoint: pipe.Optimal, Budget: []int64{10 << 20}})
	check(err)
	defer nn.Free(model)
	defer p.Close()
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	x, y := c.Ones(torch.Float32, 1024, 256), c.Ones(torch.Float32, 1024, 256)
	batch, loss := pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(y)}, nn.MSE()

	plan, err := p.PlanFor(ctx, batch, loss) // Step does so by itself
	check(err)
	torch.CPU(0).ResetPeak()
	_, err = p.Step(ctx, batch, loss)
	check(err)
	planned, measured := plan.Devices[0].Peak, torch.CPU(0).Memory().Peak
	fmt.Println("within the budget:", planned <= 10<<20, "as planned:", measured == planned)
	// Output:
	// within the budget: true as planned: true
}

func Example_limitTooSmall() {
	model := mlp()
	p, err := pipe.New(model, pipe.Config{Chunks: 2, Checkpoint: pipe.Optimal, Budget: []int64{6 << 20}})
	check(err)
	defer nn.Free(model)
	defer p.Close()
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	x := c.Ones(torch.Float32, 1024, 256)
	batch, loss := pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(x)}, nn.MSE()

	_, err = p.Step(ctx, batch, loss)
	var small *plan.MemoryError
	if errors.As(err, &small) {
		for _, s := range small.Stages {
			fmt.Printf("%v needs %.1f MiB, because of %s\n", s.Device, float64(s.Least)/(1<<20), s.SetBy)
		}
	}
	// Output:
	// cpu:0 needs 7.0 MiB, because of layer "1.0..1.1"
}
