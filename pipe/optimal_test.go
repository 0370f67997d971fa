package pipe_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"penstock.example/internal/draws"
	"penstock.example/internal/torchtest"
	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/planner"
	"penstock.example/torch"
)

// planned are problems of every kind: convolutions with batch norm in place, chains with skips
// between layers, tokens with a tied weight, long skips, dropout, tuples.
func planned(t *testing.T) map[string]problem {
	build := func(name string, o models.Options) func() *nn.Sequential {
		return func() *nn.Sequential {
			m, err := models.New(name, o)
			if err != nil {
				t.Fatal(err)
			}
			return m
		}
	}
	const rows = 6
	entropy := nn.CrossEntropy()
	tokens := func(from int) func(*torch.Ctx, int) *torch.Tensor {
		return func(c *torch.Ctx, step int) *torch.Tensor {
			out := make([]int64, rows*5)
			for i := range out {
				out[i] = int64(torch.Mix(uint64(step+from), uint64(i)) % 11)
			}
			return torch.From(c, out, rows, 5)
		}
	}
	pixels := func(c *torch.Ctx, step int) *torch.Tensor {
		return c.Reshape(classes(rows*16*16, 3)(c, step), rows, 16, 16)
	}
	image := func(size int64, q problem) problem {
		q.input, q.rows, q.steps, q.loss = normal(rows, 3, size, size), rows, 2, entropy
		if q.target == nil {
			q.target = classes(rows, 10)
		}
		return q
	}
	return map[string]problem{
		"resnet20":   image(16, problem{model: build("resnet20", models.Options{Width: 4, Channels: 3})}),
		"deep":       image(16, problem{model: fewPositions}),
		"unet":       image(16, problem{model: build("unet", models.Options{Convolutions: 2, Width: 4, Depth: 2, Size: 16, Classes: 3}), target: pixels}),
		"amoebanetd": image(32, problem{model: build("amoebanetd", models.Options{Depth: 3, Width: 16, Size: 32, Classes: 10})}),
		"mlp":        image(16, problem{model: build("mlp", models.Options{Channels: 3, Size: 16, Width: 32, Dropout: 0.2})}),
		"gpt": {model: build("gpt", models.Options{Width: 16, Depth: 2, Heads: 2, Context: 5, Classes: 11, Dropout: 0.1}), loss: entropy,
			input: tokens(0), target: tokens(1), rows: rows, steps: 2},
	}
}

// trained is a training run with a pipe: what it leaves, the most bytes of each device in each
// step, and what was planned.
type trained struct {
	record
	peaks [][]int64
	plan  *planner.Plan // of the last step
	plans []planner.DevicePlan
}

func (q problem) planned(cfg pipe.Config) (out trained, err error) {
	model := q.model()
	p, err := pipe.New(model, cfg)
	if err != nil {
		return out, err
	}
	defer nn.Free(model)
	defer p.Close()
	c := torch.NewCtx(torch.Options{Threads: 1})
	defer c.Close()
	var losses []float64
	for step := range q.steps {
		b := q.batch(c, p.Stages(), step)
		if _, err := p.PlanFor(context.Background(), b, q.loss); err != nil {
			return out, err
		}
		for _, d := range p.Devices() {
			d.ResetPeak()
		}
		result, err := p.Step(context.Background(), b, q.loss)
		if err != nil {
			return out, err
		}
		var most []int64
		for _, d := range p.Devices() {
			most = append(most, d.Memory().Peak)
		}
		out.peaks, losses = append(out.peaks, most), append(losses, result.Loss)
		if step == q.steps-1 {
			out.record = snapshot(model, losses, gradient)
		}
		err = p.OnStages(context.Background(), func(stage int, c *torch.Ctx) error {
			descend(c, p.Stages()[stage].Params())
			return nil
		})
		if err != nil {
			return out, err
		}
		nn.ZeroGrads(model)
		c.Close()
	}
	after := snapshot(model, losses, func(nn.NamedParam) []byte { return nil })
	for _, s := range nn.State(model) {
		out.values[s.Name] = after.values[s.Name]
	}
	out.plan, out.plans = p.Plan(), p.Plan().Devices
	return out, nil
}

// TestOptimalPeakIsAsPlanned: on one stage the account sees what was planned, to the byte, in every
// step and with any number of micro-batches, from the least budget that works, which a pipe with
// less says before it trains, to the one with which nothing is recomputed. Weights, gradients and
// statistics are those of the plain loop.
func TestOptimalPeakIsAsPlanned(t *testing.T) {
	problems := planned(t)
	for _, name := range slices.Sorted(maps.Keys(problems)) {
		for _, chunks := range draws.Pick([]int{3}, []int{1, 3}) {
			t.Run(fmt.Sprint(name, " ", chunks), func(t *testing.T) {
				torchtest.Check(t)
				q := problems[name]
				want := q.plain(int64(chunks), 1)
				config := func(budget int64) pipe.Config {
					return onDevices(pipe.Config{Chunks: chunks, Checkpoint: pipe.Optimal, Seed: 1, Budget: []int64{budget}})
				}
				unbound, err := q.planned(config(0))
				if err != nil {
					t.Fatal(err)
				}
				most := unbound.plans[0].Peak
				_, err = q.planned(config(unbound.plans[0].Base + 1))
				var short *planner.MemoryError
				if !errors.As(err, &short) {
					t.Fatalf("with %d bytes: %v", unbound.plans[0].Base+1, err)
				}
				budgets := []int64{0, (short.Least() + most) / 2, short.Least()}
				if draws.Full {
					budgets = append(budgets, most, max(most-1, short.Least()), short.Least()+(most-short.Least())/8)
				}
				for _, budget := range budgets {
					got, err := q.planned(config(budget))
					if err != nil {
						t.Errorf("with %d bytes of %d to %d: %v", budget, short.Least(), most, err)
						continue
					}
					if d := want.differs(got.record); d != "" {
						t.Errorf("with %d bytes of %d to %d: %s differs from the plain loop", budget, short.Least(), most, d)
					}
					for step, peak := range got.peaks {
						if plan := got.plans[0]; peak[0] != plan.Peak || budget > 0 && peak[0] > budget {
							t.Errorf("with %d bytes of %d to %d, step %d: %d bytes, planned %d", budget,
								short.Least(), most, step, peak[0], plan.Peak)
						}
					}
				}
			})
		}
	}
}

// TestOptimalStagesStayWithinTheirBudgets: over several stages what a device holds depends on who
// is first, but it never is more than was planned, which is not more than the budget; results are
// those of the plain loop. Stages of other policies may stand beside.
func TestOptimalStagesStayWithinTheirBudgets(t *testing.T) {
	problems := planned(t)
	cuts := map[string][][]int{"unet": {{6, 7, 12}}, "gpt": {{5, 11, 18}}, "amoebanetd": {{4, 5}}}
	if draws.Full {
		cuts = map[string][][]int{
			"resnet20": {{5, 6}, {3, 4, 4}}, "unet": {{10, 15}, {6, 7, 12}}, "gpt": {{6, 28},
				{5, 11, 18}}, "amoebanetd": {{4, 5}}, "mlp": {{3, 6}},
		}
	}
	for name, balances := range cuts {
		q := problems[name]
		layers := len(q.model().Layers())
		for _, balance := range balances {
			last, sum := len(balance)-1, 0
			for _, n := range balance[:last] {
				sum += n
			}
			balance[last] = layers - sum
			t.Run(fmt.Sprint(name, balance), func(t *testing.T) {
				torchtest.Check(t)
				const chunks = 3
				want := q.plainOn(torch.CPU(0), chunks, 1)
				config := func(budget ...int64) pipe.Config {
					return pipe.Config{Balance: balance, Chunks: chunks, Checkpoint: pipe.Optimal, Seed: 1, Budget: budget}
				}
				q.staysWithinBudgets(t, want, config, len(balance), draws.Pick([]float64{0.3, 0}, []float64{1, 0.7, 0.3, 0})...)
			})
		}
	}
}

// staysWithinBudgets trains under budgets between the least that each stage says, and what it takes
// without. No device holds more than was planned, which is not more than its budget.
func (q problem) staysWithinBudgets(t *testing.T, want record, config func(budget ...int64) pipe.Config, stages int, shares ...float64) {
	t.Helper()
	unbound, err := q.planned(config(0))
	if err != nil {
		t.Fatal(err)
	}
	var least []int64
	for at, s := range unbound.plans {
		budget := make([]int64, stages)
		budget[at] = s.Base + 1
		_, err = q.planned(config(budget...))
		var short *planner.MemoryError
		if !errors.As(err, &short) || short.Stages[0].Stage != at {
			t.Fatalf("stage %d with %d bytes: %v", at, s.Base+1, err)
		}
		least = append(least, short.Least())
	}
	for _, share := range shares {
		var budget []int64
		for at, s := range unbound.plans {
			budget = append(budget, least[at]+int64(share*float64(s.Peak-least[at])))
		}
		got, err := q.planned(config(budget...))
		if err != nil {
			t.Errorf("with %v bytes: %v", budget, err)
			continue
		}
		if d := want.differs(got.record); d != "" {
			t.Errorf("with %v bytes: %s differs from the plain loop", budget, d)
		}
		for step, peaks := range got.peaks {
			for at, peak := range peaks {
				if plan := got.plans[at].Peak; peak > budget[at] || plan > budget[at] || peak > plan {
					t.Errorf("stage %d with %d bytes, step %d: %d bytes, planned %d", at, budget[at], step, peak, plan)
				}
			}
		}
	}
}

// TestOptimalBetweenForwardAndBackward: a loss of the user's own comes between, and the output of
// the whole batch and its gradient are on the last device meanwhile. They were not planned for, and
// backward ran out of memory under every budget, from the least that was said to do on.
func TestOptimalBetweenForwardAndBackward(t *testing.T) {
	const rows, chunks = 6, 3
	for _, balance := range [][]int{{7}, {4, 3}} {
		t.Run(fmt.Sprint(balance), func(t *testing.T) {
			torchtest.Check(t)
			last := torch.CPU(len(balance) - 1)
			run := func(budget []int64) (plans []planner.DevicePlan, peaks []int64, err error) {
				model := nn.NewSequential(nn.NewLinear(12, 20), nn.NewTanh(), nn.NewLinear(20, 20), nn.NewTanh(),
					nn.NewLinear(20, 20), nn.NewTanh(), nn.NewLinear(20, 16))
				p, err := pipe.New(model, pipe.Config{Balance: balance, Chunks: chunks, Checkpoint: pipe.Optimal,
					Seed: 1, Budget: budget})
				if err != nil {
					return nil, nil, err
				}
				defer nn.Free(model)
				defer p.Close()
				first, onLast := torch.NewCtx(torch.Options{}), torch.NewCtx(torch.Options{Device: last})
				defer first.Close()
				defer onLast.Close()
				b := pipe.Batch{Input: pipe.Rows(normal(rows, 12)(first, 0))}
				if _, err := p.PlanFor(context.Background(), b, nil); err != nil {
					return nil, nil, err
				}
				for _, d := range p.Devices() {
					d.ResetPeak()
				}
				r, err := p.Forward(context.Background(), b)
				if err != nil {
					return nil, nil, err
				}
				defer r.Close()
				if err := r.Backward(context.Background(), onLast.Fill_(onLast.EmptyLike(r.Output()[0]), 0.1)); err != nil {
					return nil, nil, err
				}
				for _, d := range p.Devices() {
					peaks = append(peaks, d.Memory().Peak)
				}
				return p.Plan().Devices, peaks, nil
			}
			unbound, _, err := run(nil)
			if err != nil {
				t.Fatal(err)
			}
			var least []int64
			for at, s := range unbound {
				budget := make([]int64, len(balance))
				budget[at] = s.Base + 1
				_, _, err := run(budget)
				var short *planner.MemoryError
				if !errors.As(err, &short) || short.Stages[0].Stage != at {
					t.Fatalf("stage %d with %d bytes: %v", at, budget[at], err)
				}
				least = append(least, short.Least())
			}
			for _, share := range []float64{0, 0.5, 1} {
				var budget []int64
				for at, s := range unbound {
					budget = append(budget, least[at]+int64(share*float64(s.Peak-least[at])))
				}
				plans, peaks, err := run(budget)
				if err != nil {
					t.Errorf("with %v bytes: %v", budget, err)
					continue
				}
				for at, peak := range peaks {
					if peak > plans[at].Peak || plans[at].Peak > budget[at] {
						t.Errorf("stage %d with %d bytes: %d bytes, planned %d", at, budget[at], peak, plans[at].Peak)
					}
				}
			}
		})
	}
}
