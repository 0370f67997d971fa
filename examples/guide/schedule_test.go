package guide_test

import (
	"fmt"
	"time"

	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/schedule"
	"penstock.example/torch"
)

func Example_program() {
	program, err := schedule.GPipe(schedule.Config{
		Stages: 3, MicroBatches: 3,
		Recompute: func(stage, microBatch int) bool { return microBatch > 0 }, // except_last
		Skips:     []schedule.Edge{{From: 0, To: 2}},
	})
	check(err)
	fmt.Print(program)
	fmt.Println("worker 0 holds at most", schedule.InFlight(program, nil)[0], "graph")
	// Output:
	// program whole stages=3 micro-batches=3 skips=0>2
	// worker 0: 0F0 0F0>1 0F0>2 0F1 0F1>1 0F1>2 0F2 0F2>1 0F2>2 2>0B0 1>0B0 0B0 0R1 2>0B1 1>0B1 0B1 0R2 2>0B2 1>0B2 0B2
	// worker 1: 0>1F0 1F0 1F0>2 0>1F1 1F1 1F1>2 0>1F2 1F2 1F2>2 2>1B0 1B0 1B0>0 1R1 2>1B1 1B1 1B1>0 1R2 2>1B2 1B2 1B2>0
	// worker 2: 0>2F0 1>2F0 2F0 0>2F1 1>2F1 2F1 0>2F2 1>2F2 2F2 2B0 2B0>1 2B0>0 2R1 2B1 2B1>1 2B1>0 2R2 2B2 2B2>1 2B2>0
	// worker 0 holds at most 1 graph
}

func Example_simulate() {
	program, err := schedule.GPipe(schedule.Config{Stages: 3, MicroBatches: 4})
	check(err)
	timeline, err := schedule.Simulate(program, func(a schedule.Action) time.Duration {
		switch a.Kind {
		case schedule.Forward:
			return time.Millisecond
		case schedule.Backward:
			return 2 * time.Millisecond
		}
		return 0 // transfers
	})
	check(err)
	fmt.Print(timeline.Grid())
	fmt.Println("a step takes", timeline.Makespan())
	// Output:
	// 1 column = 1ms
	// worker 0  F0 F1 F2 F3 .  .  .  .  .  .  B0--- B1--- B2--- B3---
	// worker 1  .  F0 F1 F2 F3 .  .  .  B0--- B1--- B2--- B3--- .  .
	// worker 2  .  .  F0 F1 F2 F3 B0--- B1--- B2--- B3--- .  .  .  .
	// a step takes 18ms
}

func Example_bubble() {
	for _, m := range []int{1, 2, 4, 8, 16, 32} {
		program, err := schedule.GPipe(schedule.Config{Stages: 4, MicroBatches: m})
		check(err)
		timeline, err := schedule.Simulate(program, schedule.Unit)
		check(err)
		fmt.Printf("micro-batches %2d: idle %4.1f %%\n", m, 100*timeline.Idle(0))
	}
	// Output:
	// micro-batches  1: idle 75.0 %
	// micro-batches  2: idle 60.0 %
	// micro-batches  4: idle 42.9 %
	// micro-batches  8: idle 27.3 %
	// micro-batches 16: idle 15.8 %
	// micro-batches 32: idle  8.6 %
}

func Example_check() {
	program, err := schedule.Parse("program whole stages=2 micro-batches=1\nworker 0: 0F0 0F0>1 0B0 1>0B0\nworker 1: 0>1F0 1F0 1B0 1B0>0\n")
	check(err)
	fmt.Println(schedule.Check(program, schedule.Limits{}))
	// Output:
	// schedule: the program cannot run:
	// 	order: worker 0, action 3, 0B0: it comes before 1>0B0, which it needs
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

	for _, e := range result.Timeline.Events { // and e.Start, e.End; result.Timeline.GridWidth(100) draws them
		if e.Worker == 1 {
			fmt.Print(e.Action, " ")
		}
	}
	// Output:
	// 0>1F0 1F0 0>1F1 1F1 0>1F2 1F2 0>1F3 1F3 1B0 1B0>0 1R1 1B1 1B1>0 1R2 1B2 1B2>0 1R3 1B3 1B3>0
}
