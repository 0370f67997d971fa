package guide_test

import (
	"errors"
	"fmt"

	"penstock.example/autoremat"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/planner"
	"penstock.example/torch"
)

func Example_account() {
	c := torch.NewCtx(torch.Options{Device: torch.CPU(1)})
	x := c.Zeros(torch.Float32, 256, 1024)
	fmt.Println(torch.CPU(1).Memory().Live, "bytes live")
	x.Free()
	fmt.Println(torch.CPU(1).Memory().Live, "bytes live, at most", torch.CPU(1).Memory().Peak)
	c.Close()
	// Output:
	// 1048576 bytes live
	// 0 bytes live, at most 1048576
}

func Example_limit() {
	model := classifier()
	p, err := pipe.New(model, pipe.Config{Balance: []int{2, 3}, Chunks: 4})
	check(err)
	defer nn.Free(model)
	defer p.Close()
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	x, y := batch(c, 512)
	loss := nn.CrossEntropy()

	second := p.Devices()[1]
	second.SetLimit(second.Memory().Live + 1<<10) // parameters fit, activations do not
	_, err = p.Step(ctx, pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(y)}, loss)
	var refused *torch.MemoryError
	if errors.Is(err, torch.ErrOutOfMemory) && errors.As(err, &refused) {
		fmt.Println("refused on", refused.Device, "which may have", refused.Limit-refused.Live, "bytes more;", refused.Requested, "were requested")
	}
	second.SetLimit(0)
	_, err = p.Step(ctx, pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(y)}, loss)
	fmt.Println("without a limit:", err)
	// Output:
	// refused on cpu:1 which may have 1024 bytes more; 131072 were requested
	// without a limit: <nil>
}

func Example_safeLimit() {
	model := classifier()
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	x, y := batch(c, 512)
	loss := nn.CrossEntropy()
	for i := range 2 {
		torch.CPU(i).ResetPeak()
	}
	p, err := pipe.New(model, pipe.Config{Balance: []int{2, 3}, Chunks: 4, Checkpoint: pipe.Always})
	check(err)
	defer nn.Free(model)
	defer p.Close()

	_, err = p.Step(ctx, pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(y)}, loss)
	check(err)
	nn.ZeroGrads(model)
	for i, limit := range p.SafeLimit() {
		d := p.Devices()[i]
		fmt.Println(d, "measured is at most what is safe:", d.Memory().Peak <= limit)
		d.SetLimit(limit)
		defer d.SetLimit(0)
	}
	_, err = p.Step(ctx, pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(y)}, loss)
	fmt.Println("under the safe limits:", err)
	// Output:
	// cpu:0 measured is at most what is safe: true
	// cpu:1 measured is at most what is safe: true
	// under the safe limits: <nil>
}

// mlp is eight times Linear and Tanh.
func mlp() *nn.Sequential {
	model := nn.NewSequential()
	for i := range 8 {
		model.Add(fmt.Sprint(i), nn.NewSequential(nn.NewLinear(256, 256), nn.NewTanh()))
	}
	return model
}

func Example_policyMemory() {
	peak := map[pipe.Checkpoint]int64{}
	for _, policy := range []pipe.Checkpoint{pipe.Never, pipe.ExceptLast, pipe.Always} {
		model := mlp()
		p, err := pipe.New(model, pipe.Config{Chunks: 8, Checkpoint: policy})
		check(err)
		c := torch.NewCtx(torch.Options{Device: torch.CPU(1)}) // the batch does not count
		x := c.Ones(torch.Float32, 1024, 256)
		before := torch.CPU(0).Memory().Live
		torch.CPU(0).ResetPeak()
		_, err = p.Step(ctx, pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(x)}, nn.MSE())
		check(err)
		peak[policy] = torch.CPU(0).Memory().Peak - before
		c.Close()
		p.Close()
		nn.Free(model)
	}
	for _, policy := range []pipe.Checkpoint{pipe.Never, pipe.ExceptLast, pipe.Always} {
		fmt.Printf("%-11v %2.0f MiB\n", policy, float64(peak[policy])/(1<<20))
	}
	// Output:
	// never       10 MiB
	// except_last  3 MiB
	// always       3 MiB
}

func Example_optimal() {
	model := mlp()
	p, err := pipe.New(model, pipe.Config{Chunks: 2, Checkpoint: pipe.Optimal, Budget: []int64{10 << 20}})
	check(err)
	defer nn.Free(model)
	defer p.Close()
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	batch := pipe.Batch{Input: pipe.Rows(c.Ones(torch.Float32, 1024, 256)), Target: pipe.Rows(c.Ones(torch.Float32, 1024, 256))}
	loss := nn.MSE()

	plan, err := p.PlanFor(ctx, batch, loss) // Step does so by itself
	check(err)
	torch.CPU(0).ResetPeak()
	_, err = p.Step(ctx, batch, loss)
	check(err)
	planned := plan.Devices[0]
	fmt.Println("within the budget:", planned.Peak <= 10<<20, "as planned:", torch.CPU(0).Memory().Peak == planned.Peak)
	// Output:
	// within the budget: true as planned: true
}

func Example_planAsData() {
	model := nn.NewSequential(nn.NewLinear(4, 4), nn.NewTanh(), nn.NewLinear(4, 4))
	twin := nn.NewSequential(nn.NewLinear(4, 4), nn.NewTanh(), nn.NewLinear(4, 4))
	defer nn.Free(model)
	defer nn.Free(twin)
	config := pipe.Config{Balance: []int{2, 1}, Chunks: 2, Checkpoint: pipe.PerStage(pipe.Always, pipe.Never)}
	p, err := pipe.New(model, config)
	check(err)
	defer p.Close()
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	batch := pipe.Batch{Input: pipe.Rows(c.Randn(6, 4)), Target: pipe.Rows(c.Randn(6, 4))}
	_, err = p.Step(ctx, batch, nn.MSE())
	check(err)

	text := p.Plan().String() // of the last step
	fmt.Print(text)
	again, err := planner.Parse(text) // from a file, say
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

func Example_budgetTooSmall() {
	model := mlp()
	p, err := pipe.New(model, pipe.Config{Chunks: 2, Checkpoint: pipe.Optimal, Budget: []int64{6 << 20}})
	check(err)
	defer nn.Free(model)
	defer p.Close()
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	x := c.Ones(torch.Float32, 1024, 256)
	_, err = p.Step(ctx, pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(x)}, nn.MSE())
	var small *planner.MemoryError
	if errors.As(err, &small) {
		for _, s := range small.Stages {
			fmt.Printf("%v needs %.1f MiB, because of %s\n", s.Device, float64(s.Least)/(1<<20), s.SetBy)
		}
	}
	// Output:
	// cpu:0 needs 7.0 MiB, because of layer "1.0..1.1"
}

func Example_module() {
	model := mlp()
	c := torch.NewCtx(torch.Options{Threads: 1, Grad: true})
	defer c.Close()
	nn.Materialise(c, nn.State(model), 1)
	defer nn.Free(model)
	adam, err := optim.Adam(optim.Config{})
	check(err)
	defer adam.Close()

	m, err := autoremat.New(model, autoremat.Config{Limit: 16 << 20, Optimizer: adam})
	check(err)
	defer m.Close()
	loss := nn.MSE()
	for step := range 3 {
		mark := c.Mark()
		torch.CPU(0).ResetPeak()
		x := c.Ones(torch.Float32, 1024, 256)
		n := nn.NewCtx(c, nn.Config{Training: true, Seed: uint64(step)})
		c.Backward([]*torch.Tensor{loss.Forward(n, m.Forward(n, x), x)}, []*torch.Tensor{nil}, false)
		adam.Step(c, nn.Params(model))
		if step > 0 {
			fmt.Println("within the limit:", m.Predicted() <= 16<<20, "as predicted:", torch.CPU(0).Memory().Peak <= m.Predicted())
		}
		nn.ZeroGrads(model)
		c.Release(mark)
	}
	// Output:
	// within the limit: true as predicted: true
	// within the limit: true as predicted: true
}
