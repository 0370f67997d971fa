package guide_test

import (
	"fmt"

	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/plan"

	"penstock.example/profile"
	"penstock.example/schedule"
	"penstock.example/torch"
)

func Example_devices() {
	model := classifier()
	defer nn.Free(model)
	c := torch.NewCtx(torch.Options{Seed: 1})
	defer c.Close()
	sample, _ := batch(c, 32)

	measured, err := profile.Measure(ctx, model, profile.Config{}, sample)
	check(err)
	counts, _, err := plan.ByTime(measured.Layers, 2, plan.TimeConfig{
		Recomputed:     []float64{plan.ExceptLast.Recomputed(8)}, // of 8 micro-batches, on every stage
		SecondsPerByte: measured.SecondsPerByte,
		Skips:          measured.Skips,
	})
	check(err)
	p, err := pipe.New(model, pipe.Config{
		Balance:  counts,
		Chunks:   8,
		Devices:  []torch.Device{torch.CPU(3), torch.CPU(2)},
		Schedule: schedule.OneFOneB,
	})
	check(err)
	defer p.Close()
	for _, s := range p.Stages() {
		fmt.Println(s.Device)
	}
	// Output:
	// cpu:3
	// cpu:2
}

func Example_idle() {
	for _, m := range []int{1, 4, 16} {
		program, err := schedule.GPipe(schedule.Config{Stages: 4, MicroBatches: m})
		check(err)
		timeline, err := schedule.Simulate(program, schedule.Unit)
		check(err)
		fmt.Printf("micro-batches %2d: idle %4.1f %%\n", m, 100*timeline.Idle(0))
	}
	// Output:
	// micro-batches  1: idle 75.0 %
	// micro-batches  4: idle 42.9 %
	// micro-batches 16: idle 15.8 %
}

func Example_check() {
	program, err := schedule.Parse("program whole stages=2 micro-batches=1\n" +
		"worker 0: 0F0 0F0>1 0B0 1>0B0\nworker 1: 0>1F0 1F0 1B0 1B0>0\n")
	check(err)
	fmt.Println(schedule.Check(program))
	// Output:
	// schedule: the program cannot run:
	// 	order: worker 0, action 3, 0B0: it comes before 1>0B0, which it needs
}
