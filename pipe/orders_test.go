package pipe_test

import (
	"context"
	"errors"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/planner"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// TestPeaksOfAllOrders: with the policy optimal the account of every device sees what was planned,
// to the byte, also where the program alternates between forwards and backwards and where several
// stages are on one device. Where values may wait on links, it sees that if the others are as late
// as they can be, and no more in any case. Limits go from the least that will do to that under which
// nothing is recomputed. Results are those of the plain loop.
func TestPeaksOfAllOrders(t *testing.T) {
	q := deepProblem()
	q.steps = 2
	const chunks = 4
	want := q.plainOn(torch.CPU(0), chunks, 1)
	for _, tt := range []struct {
		name     string
		schedule schedule.Generator
		balance  []int
		devices  []int
	}{
		{"GPipe", schedule.GPipe, []int{4, 5}, []int{0, 1}},
		{"1F1B of two stages", schedule.OneFOneB, []int{4, 5}, []int{0, 1}},
		{"1F1B of three stages", schedule.OneFOneB, []int{2, 4, 3}, []int{0, 1, 2}},
		{"two stages of a device", schedule.GPipe, []int{4, 5}, []int{0, 0}},
		{"1F1B with two stages of a device", schedule.OneFOneB, []int{2, 4, 3}, []int{0, 1, 1}},
		{"devices in turn", schedule.GPipe, []int{2, 2, 2, 3}, []int{0, 1, 0, 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			torchtest.Check(t)
			config := func(budget ...int64) pipe.Config {
				c := pipe.Config{Balance: tt.balance, Chunks: chunks, Checkpoint: pipe.Optimal, Seed: 1, Schedule: tt.schedule}
				for i, d := range tt.devices {
					c.Devices = append(c.Devices, torch.CPU(d))
					if budget != nil {
						c.Budget = append(c.Budget, budget[tt.devices[i]])
					}
				}
				return c
			}
			unbound, err := q.planned(config())
			if err != nil {
				t.Fatal(err)
			}
			var low []int64
			for _, d := range unbound.plans {
				low = append(low, d.Base+1)
			}
			_, err = q.planned(config(low...))
			var short *planner.MemoryError
			if !errors.As(err, &short) || len(short.Stages) != len(unbound.plans) {
				t.Fatalf("with %v bytes: %v", low, err)
			}
			again := 0
			for _, share := range []float64{0, 0.1, 0.4, 0.7, 1} {
				var budget []int64
				for at, d := range unbound.plans {
					least := short.Stages[at].Least
					budget = append(budget, least+int64(share*float64(d.Peak-least)))
				}
				got, err := q.planned(config(budget...))
				if err != nil {
					t.Errorf("with %v bytes: %v", budget, err)
					continue
				}
				if d := want.differs(got.record); d != "" {
					t.Errorf("with %v bytes: %s differs from the plain loop", budget, d)
				}
				for _, s := range got.plan.Stages {
					again += s.Recomputed()
				}
				meet := got.plan.Program.Capacity == schedule.Meet
				for at, plan := range got.plans {
					for step, peaks := range got.peaks {
						if peak := peaks[at]; peak > plan.Peak || peak != plan.Peak && (meet || len(got.plans) == 1) || plan.Peak > budget[at] {
							t.Errorf("share %v of the limits, meet %v, device %d, step %d: %d bytes, planned %d of %d", share, meet, at, step, peak, plan.Peak, budget[at])
						}
					}
					if peak := q.latest(t, got.plan, at); peak != plan.Peak {
						t.Errorf("share %v of the limits, device %d, the others late: %d bytes, planned %d", share, at, peak, plan.Peak)
					}
				}
			}
			if again == 0 {
				t.Error("nothing was run again")
			}
		})
	}
}

// latest is the peak of a device in a step by a plan in which all others are as late as they can be.
func (q problem) latest(t *testing.T, plan *planner.Plan, device int) int64 {
	model := q.model()
	p, err := pipe.New(model, pipe.Config{Plan: plan, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer nn.Free(model)
	defer p.Close()
	c := torch.NewCtx(torch.Options{Threads: 1})
	defer c.Close()
	b := pipe.Batch{Input: pipe.Rows(q.input(c, 0)), Target: pipe.Rows(q.target(c, 0))}
	p.Hold(late(plan.Program.Graph(), device))
	d := p.Devices()[device]
	d.ResetPeak()
	if _, err := p.Step(context.Background(), b, q.loss); err != nil {
		t.Error(err)
	}
	return d.Memory().Peak
}
