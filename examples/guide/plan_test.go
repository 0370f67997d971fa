package guide_test

import (
	"fmt"

	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/plan"
	"penstock.example/torch"
)

func Example_plan() {
	small := func() *nn.Sequential { return nn.NewSequential(nn.NewLinear(4, 4), nn.NewTanh(), nn.NewLinear(4, 4)) }
	model, twin := small(), small()
	defer nn.Free(model)
	defer nn.Free(twin)
	policy := pipe.PerStage(pipe.Always, pipe.Never)
	p, err := pipe.New(model, pipe.Config{Balance: []int{2, 1}, Chunks: 2, Checkpoint: policy})
	check(err)
	defer p.Close()
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	batch := pipe.Batch{Input: pipe.Rows(c.Randn(6, 4)), Target: pipe.Rows(c.Randn(6, 4))}
	_, err = p.Step(ctx, batch, nn.MSE())
	check(err)

	text := p.Plan().String() // of the last step
	fmt.Print(text)
	again, err := plan.Parse(text)
	check(err)
	q, err := pipe.New(twin, pipe.Config{Plan: again})
	check(err)
	defer q.Close()
	_, err = q.Step(ctx, batch, nn.MSE())
	check(err)
	// Output:
	// device cpu:0
	// device cpu:1
	// stage 0 device=cpu:0 layers=2 policy=always
	//   0-1 K0 L S0 B0
	// stage 1 device=cpu:1 layers=1 policy=never
	//   0-1 S0 L B0
	// program whole stages=2 micro-batches=2
	// worker 0: 0F0 0F0>1 0F1 0F1>1 0R0 1>0B0 0B0 0R1 1>0B1 0B1
	// worker 1: 0>1F0 1F0 0>1F1 1F1 1B0 1B0>0 1B1 1B1>0
}

func Example_timeline() {
	model := classifier()
	p, err := pipe.New(model, pipe.Config{Balance: []int{2, 3}, Chunks: 4, Record: true})
	check(err)
	defer nn.Free(model)
	defer p.Close()
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	x, y := batch(c, 64)
	result, err := p.Step(ctx, pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(y)}, nn.CrossEntropy())
	check(err)
	for _, e := range result.Timeline.Events { // with e.Start and e.End
		if e.Worker == 1 {
			fmt.Print(e.Action, " ")
		}
	}
	// Output:
	// 0>1F0 1F0 0>1F1 1F1 0>1F2 1F2 0>1F3 1F3 1B0 1B0>0 1R1 1B1 1B1>0 1R2 1B2 1B2>0 1R3 1B3 1B3>0
}
