package pipe_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/planner"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// A plan that was written down is run by another pipe as it is: in the same bytes, to the same
// bits. Batches with fewer micro-batches do their part of it.
func TestGivenPlan(t *testing.T) {
	torchtest.Check(t)
	q := deepProblem()
	q.steps = 1
	for name, cfg := range map[string]pipe.Config{
		"planned": {Balance: []int{4, 5}, Chunks: 3, Checkpoint: pipe.Optimal, Seed: 1},
		"mixed":   {Balance: []int{4, 5}, Chunks: 3, Checkpoint: pipe.PerStage(pipe.Always, pipe.Optimal), Seed: 1},
		"fixed": {Balance: []int{3, 3, 3}, Chunks: 4,
			Checkpoint: pipe.PerStage(pipe.Always, pipe.Never, pipe.ExceptLast), Seed: 1},
	} {
		if cfg.Checkpoint.String() != "always,never,except_last" {
			cfg.Budget = []int64{0, 0}
			unbound, err := q.planned(cfg)
			if err != nil {
				t.Fatal(err)
			}
			for i, s := range unbound.plan.Stages {
				if s.Policy == planner.Optimal {
					cfg.Budget[i] = unbound.plans[i].Peak - 100
				}
			}
		}
		want, err := q.planned(cfg)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		plan, err := planner.Parse(want.plan.String())
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, err := q.planned(pipe.Config{Plan: plan, Seed: 1})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if d := want.differs(got.record); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		for i := range want.plans {
			if want.plan.Stages[i].Policy != planner.Optimal {
				continue
			}
			most := want.plan.Devices[want.plan.Stages[i].Device].Peak
			meet := want.plan.Program.Capacity == schedule.Meet // otherwise a peak depends on which stage is ahead
			if ran := []int64{want.peaks[0][i], got.peaks[0][i]}; slices.Max(ran) > most || meet && slices.Min(ran) != most {
				t.Errorf("%s: stage %d takes %d bytes, by the plan that was written down %d, and %d are planned", name, i, ran[0], ran[1], most)
			}
		}
		if got.plan.String() != want.plan.String() {
			t.Errorf("%s: ran\n%v, want\n%v", name, got.plan, want.plan)
		}
		short := q // a batch of two rows
		short.rows, short.input, short.target = 2, normal(2, 12), classes(2, 3)
		fewer, err := short.planned(pipe.Config{Plan: plan, Seed: 1})
		if err != nil {
			t.Fatalf("%s, 2 micro-batches: %v", name, err)
		}
		cfg.Checkpoint, cfg.Budget = pipe.Never, nil
		if want, err = short.planned(cfg); err != nil {
			t.Fatal(err)
		}
		if d := want.differs(fewer.record); d != "" {
			t.Errorf("%s: %s", name+", 2 micro-batches", d)
		}
	}
}

// A plan that does not go with the rest is refused before anything runs.
func TestGivenPlanIsRefused(t *testing.T) {
	torchtest.Check(t)
	text := `device cpu:0
device cpu:1
stage 0 device=cpu:0 layers=4 policy=never
  0-1 S0 L B0
stage 1 device=cpu:1 layers=5 policy=never
  0-1 S0 L B0
program whole stages=2 micro-batches=2
worker 0: 0F0 0F0>1 0F1 0F1>1 1>0B0 0B0 1>0B1 0B1
worker 1: 0>1F0 1F0 0>1F1 1F1 1B0 1B0>0 1B1 1B1>0
`
	plan := func(from, to string) *planner.Plan {
		p, err := planner.Parse(strings.ReplaceAll(text, from, to))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	swapped, err := planner.Parse(`device cpu:1
device cpu:0
stage 0 device=cpu:0 layers=4 policy=never
  0 S0 L B0
stage 1 device=cpu:1 layers=5 policy=never
  0 S0 L B0
program whole stages=2 micro-batches=1
worker 0: 0>1F0 1F0 1B0 1B0>0
worker 1: 0F0 0F0>1 1>0B0 0B0
`)
	if err != nil {
		t.Fatal(err)
	}
	broken := plan("cpu:0", "cpu:0")
	broken.Stages[0].MicroBatches[0].Ops = nil
	for want, cfg := range map[string]pipe.Config{
		"Chunks is 3: the plan has fewer micro-batches; want at most 2": {Plan: plan("cpu:0", "cpu:0"), Chunks: 3},
		"leave Balance, Checkpoint, Budget and Schedule out":            {Plan: plan("cpu:0", "cpu:0"), Balance: []int{4, 5}},
		"Balance is [3 5]: it adds up to 8":                             {Plan: plan("layers=4", "layers=3")},
		"Plan is for 2 stages and 2 micro-batches: stage 0: ":           {Plan: plan("cpu:0", "tpu:0")},
		"its worker 0 does ":                                            {Plan: swapped},
		"micro-batches: planner: ":                                      {Plan: broken},
	} {
		model := deep()
		p, err := pipe.New(model, cfg)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		if p != nil {
			p.Close()
		}
		nn.Free(model)
	}
	model := deep()
	defer nn.Free(model)
	p, err := pipe.New(model, pipe.Config{Plan: plan("cpu:0", "cpu:0")})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if p.Plan() != nil {
		t.Error("there is a plan of a step that was not taken")
	}
	c := torch.NewCtx(torch.Options{Threads: 1})
	defer c.Close()
	q := deepProblem()
	if _, err := p.Step(context.Background(),
		pipe.Batch{Input: pipe.Rows(q.input(c, 0)), Target: pipe.Rows(q.target(c, 0))}, q.loss); err != nil {
		t.Error(err)
	}
	if got := p.Plan().String(); got != text {
		t.Errorf("ran\n%s", got)
	}
}
