package pipe_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"penstock.example/group"
	"penstock.example/internal/draws"
	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/plan"
	"penstock.example/schedule"
	"penstock.example/torch"
	"pgregory.net/rapid"
)

// TestPredictedPeaksOfRandomModels: the account of every device sees what was planned, to the byte, if
// the others are as late as the program lets them: for random models, rows, cuts, placements and
// schedules, also with backwards in two parts, and policies, from the least budgets that will do to
// those under which nothing is recomputed. Where plans are upper bounds (see bound), none is exceeded.
func TestPredictedPeaksOfRandomModels(t *testing.T) {
	torchtest.Check(t)
	rapid.Check(t, func(t *rapid.T) {
		rows := rapid.Int64Range(1, 9).Draw(t, "rows")
		kinds := rapid.SliceOfN(anyKind, 1, 10).Draw(t, "layers")
		q := problem{
			model: func() *nn.Sequential { return randomModel(kinds, nn.Checkpointed) }, rows: rows, steps: 1,
			loss: nn.CrossEntropy(), input: normal(rows, 2, 6, 6), target: classes(rows, 3),
			deferred: rapid.Bool().Draw(t, "deferred"), autocast: randomAutocast(t), threads: 1,
		}
		cfg := pipe.Config{Chunks: rapid.IntRange(1, 6).Draw(t, "chunks"), DeferredBatchNorm: q.deferred,
			Autocast: q.autocast, Threads: 1, Seed: 1}
		randomSchedule(t, &cfg, len(q.model().Layers()))
		cfg.Checkpoint = pipe.Never
		cfg = onDevices(cfg)
		q.randomBudgets(t, &cfg)
		if cfg.Budget == nil {
			return
		}
		if wrong := q.predicted(t, cfg); wrong != "" {
			t.Fatal(wrong)
		}
	})
}

// TestPredictedPeaksOfParts: the backwards of a device free what they may, and what is held for second
// parts of others stays: inputs, outputs, gradients, all of them or none.
func TestPredictedPeaksOfParts(t *testing.T) {
	torchtest.Check(t)
	draws.Checks(t, 20, 100)
	rapid.Check(t, func(t *rapid.T) {
		kinds := rapid.SampledFrom([][]int{{4, 31}, {31, 9, 31}, {8, 31, 9}, {19, 0}, {33, 8, 31}}).Draw(t,
			"layers")
		q := problem{
			model: func() *nn.Sequential { return randomModel(kinds, nn.Checkpointed) }, rows: 3, steps: 1,
			loss: nn.CrossEntropy(), input: normal(3, 2, 6, 6), target: classes(3,
				3), deferred: true, threads: 1,
		}
		cfg := pipe.Config{Chunks: 3, DeferredBatchNorm: q.deferred, Threads: 1, Seed: 1}
		layers := len(q.model().Layers())
		o := order{Seed: rapid.Uint64().Draw(t, "seed"), Parts: true, Balance: []int{layers - 1, 1},
			Devices: []int{0, 1}}
		if rapid.Bool().Draw(t, "two stages on a device") {
			first := rapid.IntRange(1, layers-2).Draw(t, "first")
			o.Balance, o.Devices = []int{first, layers - 1 - first, 1}, []int{0, 0, 1}
		}
		o.set(&cfg)
		cfg.Checkpoint = pipe.Never
		cfg = onDevices(cfg)
		if q.randomBudgets(t, &cfg); cfg.Budget == nil {
			return
		}
		if wrong := q.predicted(t, cfg); wrong != "" {
			t.Fatal(wrong)
		}
	})
}

// predicted says where the most bytes of a device are not those that were planned.
func (q problem) predicted(t test, cfg pipe.Config) (wrong string) {
	model := q.model()
	p := must.Get(pipe.New(model, cfg))(t)
	defer nn.Free(model)
	defer p.Close()
	c := torch.NewCtx(torch.Options{Threads: 1, Device: aside})
	defer c.Close()
	for step := range q.steps {
		q.sets(step, model)
		wrong += q.predictedNow(t, p, model, q.batch(c, p.Stages(), step))
	}
	return wrong
}

// predictedNow is predicted of one batch.
func (q problem) predictedNow(t test, p *pipe.Pipe, model *nn.Sequential, b pipe.Batch) (wrong string) {
	plan := must.Get(p.PlanFor(context.Background(), b, q.loss))(t)
	for at, d := range p.Devices() {
		if plan.Devices[at].Peak == 0 { // with another policy
			continue
		}
		p.Hold(late(plan.Program.Graph(), at))
		d.ResetPeak()
		if _, err := p.Step(context.Background(), b, q.loss); err != nil {
			t.Fatal(err)
		}
		p.Hold(nil)
		nn.ZeroGrads(model)
		if peak, planned := d.Memory().Peak, plan.Devices[at].Peak; peak > planned || planned > peak+
			bound(plan, at) {
			wrong += fmt.Sprintf("%v: %d bytes, planned %d (%+d)\n", d, peak, planned, planned-peak)
		}
	}
	if wrong != "" {
		wrong += fmt.Sprint(plan)
	}
	return wrong
}

// bound returns by how many bytes the peak of a device may be planned too high: by a twentieth, or a
// few small tensors, if backwards are in two parts.
func bound(plan *plan.Plan, device int) int64 {
	if slices.ContainsFunc(plan.Program.Workers[device],
		func(a schedule.Action) bool { return a.Kind == schedule.BackwardInput }) {
		return max(plan.Devices[device].Peak/20, 4096)
	}
	return 0
}

// TestPredictedPeaksOfProcesses: the account of every device sees what was planned, to the byte, in any
// number of processes: what a device holds does not depend on where processes begin and end. Each device
// is measured in a step of its own, in which all others are as late as the program lets them.
func TestPredictedPeaksOfProcesses(t *testing.T) {
	torchtest.Check(t)
	draws.Checks(t, 15, 100)
	rapid.Check(t, func(t *rapid.T) {
		d := drawRun(t, 1)
		cfg := d.config()
		q := d.problem()
		if q.steps, d.Short = 1, d.Rows; cfg.Budget == nil {
			cfg.Checkpoint = pipe.Never
			q.randomBudgets(t, &cfg)
		}
		if cfg.Budget == nil {
			return
		}
		processes := rapid.IntRange(1, d.devices()).Draw(t, "processes")
		if wrong := q.predictedApart(t, cfg, processes); wrong != "" {
			t.Fatal(wrong)
		}
	})
}

// predictedApart is predicted of a pipe whose stages are in several processes.
func (q problem) predictedApart(t test, cfg pipe.Config, processes int) (wrong string) {
	t.Helper()
	var mu sync.Mutex
	holds := map[int]func(worker, action int){} // by device; all processes have the same
	texts, errs := each(processes, func(g *group.Group) (wrong string, err error) {
		err = q.on(g, cfg, func(m process) error {
			plan, err := m.PlanFor(context.Background(), m.batch(0), q.loss)
			if err != nil {
				return err
			}
			for at, d := range m.Devices() {
				here := slices.ContainsFunc(m.Stages(),
					func(s *pipe.Stage) bool { return s.Here && s.Device == d })
				mu.Lock()
				if holds[at] == nil {
					holds[at] = late(plan.Program.Graph(), at)
				}
				m.Hold(holds[at])
				mu.Unlock()
				if here {
					d.ResetPeak()
				}
				if err := m.train(context.Background(), 0); err != nil {
					return err
				}
				m.Hold(nil)
				if peak, planned := d.Memory().Peak, plan.Devices[at].Peak; here && planned > 0 &&
					(peak > planned || planned > peak+bound(plan, at)) {
					wrong += fmt.Sprintf("%v in process %d of %d: %d bytes, planned %d (%+d)\n", d,
						g.Rank(), processes, peak, planned, planned-peak)
				}
			}
			if wrong != "" {
				wrong += fmt.Sprint(plan)
			}
			return nil
		})
		return wrong, err
	})
	must.Do(t, errors.Join(errs...))
	for _, text := range texts {
		wrong += text
	}
	return wrong
}

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
				c := pipe.Config{Balance: tt.balance, Chunks: chunks, Checkpoint: pipe.Optimal, Seed: 1,
					Schedule: tt.schedule}
				for i, d := range tt.devices {
					c.Devices = append(c.Devices, torch.CPU(d))
					if budget != nil {
						c.Budget = append(c.Budget, budget[tt.devices[i]])
					}
				}
				return c
			}
			unbound := must.Get(q.planned(config()))(t)
			var low []int64
			for _, d := range unbound.plans {
				low = append(low, d.Base+1)
			}
			_, err := q.planned(config(low...))
			var short *plan.MemoryError
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
						if peak := peaks[at]; peak > plan.Peak || peak != plan.Peak &&
							(meet || len(got.plans) == 1) || plan.Peak > budget[at] {
							t.Errorf("share %v of the limits, meet %v, device %d, step %d: %d bytes, "+
								"planned %d of %d", share, meet, at, step, peak, plan.Peak, budget[at])
						}
					}
					if peak := q.latest(t, got.plan, at); peak != plan.Peak {
						t.Errorf("share %v of the limits, device %d, the others late: %d bytes, planned %d",
							share, at, peak, plan.Peak)
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
func (q problem) latest(t *testing.T, plan *plan.Plan, device int) int64 {
	model := q.model()
	p := must.Get(pipe.New(model, pipe.Config{Plan: plan, Seed: 1}))(t)
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

// The gradient of the batch's input is in the plan: it is made in the size of the whole batch, for each
// micro-batch anew, and stays.
func TestOptimalWithAGradientOfTheInput(t *testing.T) {
	for _, chunks := range []int{1, 3} {
		for _, balance := range [][]int{{4}, {2, 2}} {
			t.Run(fmt.Sprint(chunks, balance), func(t *testing.T) {
				torchtest.Check(t)
				run := func(budget int64) (plan *plan.Plan, err error) {
					model := nn.NewSequential(nn.NewLinear(40, 8), nn.NewTanh(), nn.NewLinear(8, 8),
						nn.NewLinear(8, 4))
					p, err := pipe.New(model,
						pipe.Config{Balance: balance, Chunks: chunks, Checkpoint: pipe.Optimal, Seed: 1,
							Budget: []int64{budget}})
					if err != nil {
						return nil, err
					}
					defer nn.Free(model)
					defer p.Close()
					c := torch.NewCtx(torch.Options{Threads: 1, Device: torch.CPU(7)})
					defer c.Close()
					for step := range 2 {
						x := normal(9, 40)(c, step).SetRequiresGrad(true)
						b := pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(normal(9, 4)(c, step)),
							Step: new(int64(step))}
						if plan, err = p.PlanFor(context.Background(), b, nn.MSE()); err != nil {
							return nil, err
						}
						for again := range 2 { // without a gradient, and adding to it
							torch.CPU(0).ResetPeak()
							if _, err := p.Step(context.Background(), b, nn.MSE()); err != nil {
								return nil, err
							}
							if peak, planned := torch.CPU(0).Memory().Peak, p.Plan().Devices[0].Peak; peak != planned {
								t.Errorf("with %d bytes, step %d.%d: %d bytes, planned %d", budget, step,
									again, peak, planned)
							}
							nn.ZeroGrads(model)
						}
						x.SetGradOf(nil)
						c.Close()
					}
					return plan, nil
				}
				unbound := must.Get(run(0))(t)
				_, err := run(unbound.Devices[0].Base + 1)
				var short *plan.MemoryError
				if !errors.As(err, &short) {
					t.Fatal(err)
				}
				if _, err := run(short.Least() + 9*40*4); err != nil { // the gradient that is added to
					t.Errorf("with %d bytes: %v", short.Least(), err)
				}
			})
		}
	}
}

// TestLeastWithAPrologue: a frozen front that needs more than what is trained after it is part of
// the least that will do, which was said without it, and then failed again with more.
func TestLeastWithAPrologue(t *testing.T) {
	torchtest.Check(t)
	for _, balance := range [][]int{{7}, {1, 6}} {
		q := deepProblem()
		q.model = func() *nn.Sequential {
			m := nn.NewSequential(nn.NewLinear(12, 16), nn.NewLinear(16, 300), nn.NewTanh(),
				nn.NewLinear(300, 8),
				nn.NewLinear(8, 8), nn.NewTanh(), nn.NewLinear(8, 3))
			for _, l := range m.Layers()[:4] {
				for _, p := range nn.Params(l.Layer) {
					p.SetTrainable(false)
				}
			}
			return m
		}
		last := len(balance) - 1
		config := func(bytes int64) pipe.Config {
			budget := make([]int64, len(balance))
			budget[last] = bytes
			return pipe.Config{Balance: balance, Chunks: 3, Checkpoint: pipe.Optimal, Seed: 1, Budget: budget}
		}
		unbound := must.Get(q.planned(config(0)))(t)
		_, err := q.planned(config(unbound.plans[last].Base + 1))
		least := shortages(t, err).Least()
		if _, err := q.planned(config(least)); err != nil {
			t.Errorf("%v: with %d bytes: %v", balance, least, err)
		}
		_, err = q.planned(config(least - 1))
		if n := shortages(t, err).Least(); n != least {
			t.Errorf("%v: the least is %d bytes and then %d", balance, least, n)
		}
	}
}
