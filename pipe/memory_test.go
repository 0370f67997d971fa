package pipe_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"penstock.example/internal/draws"
	"penstock.example/internal/must"
	"penstock.example/internal/shim"
	"penstock.example/internal/torchtest"
	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/plan"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// tanh is a layer whose graph holds exactly its output: Linear keeps its input, which is the output
// of the layer before, and Tanh keeps what it gives.
type tanh struct{ *linear }

func (l tanh) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	y := c.Linear(x, l.weight.Tensor(), l.bias.Tensor())
	z := c.Op("aten::tanh", y)
	y.Free()
	return z
}

// mean is a loss that keeps nothing but its number. (aten::mse_loss keeps the memory of all
// differences behind its scalar.)
type mean struct{}

func (mean) Forward(c *nn.Ctx, y, _ *torch.Tensor) *torch.Tensor { return c.Mean(y) }
func (mean) Reduction() torch.Reduction                          { return torch.ReduceMean }

// A limit is enforced to the byte: the peak of a step is enough, one byte less is not, and the
// refusal costs nothing but the step.
func TestLimitIsEnforced(t *testing.T) {
	torchtest.Check(t)
	d := torchtest.Device(5)
	model := nn.NewSequential(tanh{newLinear(8, 32)}, tanh{newLinear(32, 32)}, tanh{newLinear(32, 4)})
	p := started(t, model, pipe.Config{Chunks: 2, Checkpoint: pipe.Never, Devices: []torch.Device{d}})
	c := newCtx(t, torch.Options{Device: aside})
	q := problem{input: normal(16, 8), target: later(1, normal(16, 4))}
	b := q.batch(c, p.Stages(), 0)
	step := func() error {
		defer nn.ZeroGrads(model)
		_, err := p.Step(context.Background(), b, squares{})
		return err
	}
	d.ResetPeak()
	must.Do(t, step())
	m := d.Memory()
	d.SetLimit(m.Peak)
	defer d.SetLimit(0)
	if err := step(); err != nil {
		t.Errorf("the limit is the peak, and yet: %v", err)
	}
	d.SetLimit(m.Peak - 1)
	err := step()
	var e *torch.MemoryError
	if !errors.As(err, &e) || e.Device != d || e.Limit != m.Peak-1 || e.Live+e.Requested <= e.Limit {
		t.Errorf("got %v", err)
	}
	for _, want := range []string{d.String(), "limit ", "live ", "requested ", "aten::", "use more chunks"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
	d.SetLimit(0)
	if err := step(); err != nil || d.Memory().Live != m.Live {
		t.Errorf("after the refusal: %v, live %d, want %d", err, d.Memory().Live, m.Live)
	}
	d.SetLimit(m.Live + 20000) // the first layer fits, the second does not
	if _, err := pipe.New(nn.NewSequential(nn.NewLinear(10, 100), nn.NewLinear(100, 100)),
		pipe.Config{Devices: []torch.Device{d}}); !errors.Is(err, torch.ErrOutOfMemory) {
		t.Errorf("a model beyond the limit: got %v", err)
	}
}

// planned are problems of every kind: convolutions with batch norm in place, chains with skips
// between layers, tokens with a tied weight, long skips, dropout, tuples.
func planned(t *testing.T) map[string]problem {
	build := func(name string, o models.Options) func() *nn.Sequential {
		return func() *nn.Sequential {
			return must.Get(models.New(name, o))(t)
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
		"resnet20": image(16, problem{model: build("resnet20", models.Options{Width: 4, Channels: 3})}),
		"deep":     image(16, problem{model: fewPositions}),
		"unet": image(16, problem{model: build("unet",
			models.Options{Convolutions: 2, Width: 4, Depth: 2, Size: 16, Classes: 3}), target: pixels}),
		"amoebanetd": image(32, problem{model: build("amoebanetd",
			models.Options{Depth: 3, Width: 16, Size: 32, Classes: 10})}),
		"mlp": image(16, problem{model: build("mlp",
			models.Options{Channels: 3, Size: 16, Width: 32, Dropout: 0.2})}),
		"gpt": {model: build("gpt", models.Options{Width: 16, Depth: 2, Heads: 2, Context: 5, Classes: 11,
			Dropout: 0.1}), loss: entropy,
			input: tokens(0), target: tokens(1), rows: rows, steps: 2},
		"adapters": {model: func() *nn.Sequential {
			m := build("../models/testdata/folders/llama", models.Options{})()
			must.Do(t, nn.AddLoRA(m, nn.LoRA{Rank: 2, Alpha: 4, Dropout: 0.1,
				Layers: []string{"*.q_proj", "*.v_proj", "*.1.mlp.down_proj"}}))
			return m
		}, loss: entropy, input: tokens(0), target: tokens(1), rows: rows, steps: 2},
	}
}

// trained is a training run with a pipe: what it leaves, the most bytes of each device in each
// step, and what was planned.
type trained struct {
	record
	peaks [][]int64
	plan  *plan.Plan // of the last step
	plans []plan.DevicePlan
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

// TestOptimalStagesStayWithinTheirBudgets: over several stages what a device holds depends on who
// is first, but it never is more than was planned, which is not more than the budget; results are
// those of the plain loop. Stages of other policies may stand beside.
func TestOptimalStagesStayWithinTheirBudgets(t *testing.T) {
	problems := planned(t)
	cuts := map[string][][]int{"adapters": {{0}, {11, 0}}, "unet": {{6, 7, 12}}, "gpt": {{5, 11, 18}},
		"amoebanetd": {{4, 5}}}
	if draws.Full {
		cuts = map[string][][]int{
			"adapters": {{0}, {3, 0}, {11, 0}, {5, 9, 0}},
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
					return pipe.Config{Balance: balance, Chunks: chunks, Checkpoint: pipe.Optimal, Seed: 1,
						Budget: budget}
				}
				q.staysWithinBudgets(t, want, config, len(balance),
					draws.Pick([]float64{0.3, 0}, []float64{1, 0.7, 0.3, 0})...)
			})
		}
	}
}

// staysWithinBudgets trains under budgets between the least that each stage says, and what it takes
// without. No device holds more than was planned, which is not more than its budget.
func (q problem) staysWithinBudgets(t *testing.T, want record, config func(budget ...int64) pipe.Config,
	stages int, shares ...float64) {
	t.Helper()
	unbound := must.Get(q.planned(config(0)))(t)
	var least []int64
	for at, s := range unbound.plans {
		budget := make([]int64, stages)
		budget[at] = s.Base + 1
		_, err := q.planned(config(budget...))
		var short *plan.MemoryError
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
					t.Errorf("stage %d with %d bytes, step %d: %d bytes, planned %d", at, budget[at], step,
						peak, plan)
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
			run := func(budget []int64) (plans []plan.DevicePlan, peaks []int64, err error) {
				model := nn.NewSequential(nn.NewLinear(12, 20), nn.NewTanh(), nn.NewLinear(20, 20),
					nn.NewTanh(),
					nn.NewLinear(20, 20), nn.NewTanh(), nn.NewLinear(20, 16))
				p, err := pipe.New(model,
					pipe.Config{Balance: balance, Chunks: chunks, Checkpoint: pipe.Optimal, Seed: 1,
						Budget: budget})
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
				if err := r.Backward(context.Background(),
					onLast.Fill_(onLast.Op("aten::empty_like", r.Output()[0]), 0.1)); err != nil {
					return nil, nil, err
				}
				for _, d := range p.Devices() {
					peaks = append(peaks, d.Memory().Peak)
				}
				return p.Plan().Devices, peaks, nil
			}
			unbound, _, err := run(nil)
			must.Do(t, err)
			var least []int64
			for at, s := range unbound {
				budget := make([]int64, len(balance))
				budget[at] = s.Base + 1
				_, _, err := run(budget)
				var short *plan.MemoryError
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
						t.Errorf("stage %d with %d bytes: %d bytes, planned %d", at, budget[at], peak,
							plans[at].Peak)
					}
				}
			}
		})
	}
}

// Measuring keeps the least limit that steps do.
func TestMeasuringKeepsTheLeastLimit(t *testing.T) {
	for _, m := range []struct {
		name    string
		options models.Options
	}{
		{"mlp", models.Options{}}, {"resnet20", models.Options{Width: 4}},
		{"unet", models.Options{Convolutions: 2, Width: 4, Depth: 2, Size: 32}},
	} {
		for _, chunks := range draws.Pick([]int{2}, []int{1, 2}) {
			t.Run(fmt.Sprint(m.name, " ", chunks), func(t *testing.T) {
				torchtest.Check(t)
				model := must.Get(models.New(m.name, m.options))(t)
				defer nn.Free(model)
				device := torch.CPU(0)
				c := torch.NewCtx(torch.Options{Device: device, Seed: 1})
				defer c.Close()
				size, target := int64(32), []int64{8}
				if m.name == "mlp" {
					size = 28
				} else if m.name == "unet" {
					target = []int64{8, size, size}
				}
				info := must.Get(models.Describe(m.name))(t)
				b := pipe.Batch{Input: pipe.Rows(normal(8, info.Input[0], size, size)(c, 0)),
					Target: pipe.Rows(c.Zeros(torch.Int64, target...))}
				defer device.SetLimit(0)
				planned := func(limit int64) (most int64, err error) {
					p := must.Get(pipe.Open(model,
						pipe.Config{Balance: []int{len(model.Layers())}, Chunks: chunks,
							Checkpoint: pipe.Optimal, Seed: 1}))(t)
					defer p.Close()
					device.SetLimit(limit)
					device.ResetPeak()
					_, err = p.PlanFor(context.Background(), b, nn.CrossEntropy())
					return device.Memory().Peak, err
				}
				beyond, err := planned(device.Memory().Live + 1)
				least := shortages(t, err).Least()
				if beyond > least {
					t.Errorf("measuring held %d bytes beyond its limit, and a plan needs %d", beyond, least)
				}
				if most, err := planned(least); err != nil || most > least {
					t.Errorf("under the least limit, of %d bytes, measuring held %d: %v", least, most, err)
				}
			})
		}
	}
}

// pace delays workers: to each it gives the actions that others must have begun, or be through,
// before it begins one of its own.
type pace struct {
	mu    sync.Mutex
	moved *sync.Cond
	at    []int // by worker: the action that it has come to
}

// paced lets wait decide, for a worker that has come to an action, whether it is too early.
func paced(g *schedule.Graph, wait func(at []int, worker, action int) bool) func(worker, action int) {
	p := &pace{at: slices.Clone(g.First[:len(g.First)-1])}
	p.moved = sync.NewCond(&p.mu)
	return func(worker, action int) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.at[worker] = action
		p.moved.Broadcast()
		for action < g.First[worker+1] && wait(p.at, worker, action) {
			p.moved.Wait()
		}
	}
}

// stuck is where each worker comes to if one of them stays before an action.
func stuck(g *schedule.Graph, worker, before int) []int {
	next := slices.Clone(g.First[:len(g.First)-1])
	done := make([]bool, len(g.Actions))
	for moved := true; moved; {
		moved = false
		for w := range next {
			for next[w] < g.First[w+1] && !(w == worker && next[w] >= before) &&
				!slices.ContainsFunc(g.Deps[next[w]], func(dep int) bool { return !done[dep] }) {
				done[next[w]] = true
				next[w]++
				moved = true
			}
		}
	}
	return next
}

// prompt makes one worker wait until the others have received all that was sent.
func prompt(g *schedule.Graph, one int) func(worker, action int) {
	return paced(g, func(at []int, worker, action int) bool {
		if worker != one {
			return false
		}
		for w, until := range stuck(g, one, action) {
			if w != one && at[w] < until {
				return true
			}
		}
		return false
	})
}

// late makes all others wait for as long as one worker can go on without them.
func late(g *schedule.Graph, one int) func(worker, action int) {
	needs := make([][]bool, len(g.Actions)) // by action of the one: what must be done before it
	for id := g.First[one]; id < g.First[one+1]; id++ {
		needs[id] = make([]bool, len(g.Actions))
		var mark func(id int)
		mark = func(at int) {
			for _, dep := range g.Deps[at] {
				if !needs[id][dep] {
					needs[id][dep] = true
					mark(dep)
				}
			}
			if w := g.Worker[at]; at > g.First[w] && !needs[id][at-1] {
				needs[id][at-1] = true
				mark(at - 1)
			}
		}
		mark(id)
		if next := id + 1; g.Actions[id].Kind.Send() { // it may wait for the receive itself
			receive, _ := g.IndexOf(g.Actions[id].Matching())
			if next == g.First[one+1] || slices.Contains(g.Deps[next], receive) {
				needs[id][receive] = true
				mark(receive)
			}
		}
	}
	return paced(g, func(at []int, worker, action int) bool {
		return worker != one && at[one] < g.First[one+1] && !needs[at[one]][action]
	})
}

// passes are steps of a problem, with updates, and one inference. It returns what the pipe says of
// its limits, and the most bytes of each device.
func (q problem) passes(cfg pipe.Config, limits []int64,
	hold func(g *schedule.Graph) func(worker, action int)) (safe, peaks []int64, err error) {
	model := q.model()
	defer nn.Free(model)
	c := torch.NewCtx(torch.Options{Threads: 1})
	defer c.Close()
	x, y := q.input(c, 0), q.target(c, 0)
	devices := devicesOf(cfg)
	for i := range devices {
		devices[i].ResetPeak()
		if limits != nil {
			devices[i].SetLimit(limits[i])
			defer devices[i].SetLimit(0)
		}
	}
	p, err := pipe.New(model, cfg)
	if err != nil {
		return nil, nil, err
	}
	defer p.Close()
	delay := func() {
		if hold == nil {
			return
		}
		program, err := p.Program(min(cfg.Chunks, int(q.rows)))
		if err != nil {
			panic(err)
		}
		p.Hold(hold(program.Graph()))
	}
	for step := range 2 {
		delay()
		if _, err := p.Step(context.Background(),
			pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(y),
				Step: new(int64(step))}, q.loss); err != nil {
			return nil, nil, err
		}
		err := p.OnStages(context.Background(),
			func(stage int, c *torch.Ctx) error { descend(c, p.Stages()[stage].Params()); return nil })
		if err != nil {
			return nil, nil, err
		}
		nn.ZeroGrads(model)
	}
	for _, d := range devices {
		peaks = append(peaks, d.Memory().Peak)
	}
	return p.SafeLimit(), peaks, nil
}

// devicesOf lists the devices of the stages, each once.
func devicesOf(cfg pipe.Config) (out []torch.Device) {
	for i := range cfg.Balance {
		d := torch.CPU(i)
		if cfg.Devices != nil {
			d = cfg.Devices[i]
		}
		if !slices.Contains(out, d) {
			out = append(out, d)
		}
	}
	return out
}

// randomCut draws how so many layers are cut and run.
func randomCut(t *rapid.T, layers int) pipe.Config {
	cfg := pipe.Config{Chunks: rapid.IntRange(1, 5).Draw(t, "chunks"), Seed: 1}
	randomSchedule(t, &cfg, layers)
	var mixed []pipe.Checkpoint
	for range cfg.Balance {
		mixed = append(mixed, rapid.SampledFrom(policies).Draw(t, "policy"))
	}
	cfg.Checkpoint = pipe.PerStage(mixed...)
	return cfg
}

// TestSafeLimitHolds: under the safe limit of a run, here one in which neighbours receive at
// once, the same passes when they are as late as they can be. Networks are of all kinds: with
// skips, tied parameters, tuples, views and layers that pass on what they are given.
func TestSafeLimitHolds(t *testing.T) {
	torchtest.Check(t)
	rapid.Check(t, func(t *rapid.T) {
		kinds := rapid.SliceOfN(anyKind, 1, 8).Draw(t, "kinds")
		q := problem{model: func() *nn.Sequential { return randomModel(kinds, unwrapped) }, rows: 5,
			loss: nn.CrossEntropy(), input: normal(5, 2, 6, 6), target: classes(5, 3)}
		cfg := randomCut(t, len(q.model().Layers()))
		for one, device := range devicesOf(cfg) {
			safe, peaks, err := q.passes(cfg, nil,
				func(g *schedule.Graph) func(int, int) { return prompt(g, one) })
			must.Do(t, err)
			if peaks[one] > safe[one] {
				t.Errorf("%v takes %d bytes, and %d were to be safe", device, peaks[one], safe[one])
			}
			if _, _, err := q.passes(cfg, safe,
				func(g *schedule.Graph) func(int, int) { return late(g, one) }); err != nil {
				t.Errorf("with late neighbours of %v, %v bytes are not safe: %v", device, safe, err)
			}
		}
	})
}

// requested is what libtorch's allocator of a GPU says that it was asked for, and 0 for a CPU.
func requested(d torch.Device) int64 {
	if d.Kind == torch.KindCPU {
		return 0
	}
	return shim.GetAccount(shim.GPUAccount + d.Index).Requested
}

// Before each action of each step the account of a device is what its allocator was asked for since
// the second step, to the byte, and 200 steps with updates leave no byte more than the first ones.
func TestTwoHundredStepsLeaveNothing(t *testing.T) {
	torchtest.Check(t)
	d := torchtest.Device(6)
	model := nn.NewSequential(nn.NewConv2d(3, 8, nn.Square(3), nn.ConvConfig{}),
		nn.NewBatchNorm2d(8, nn.BatchNormConfig{}), nn.NewReLUInPlace(),
		nn.NewBasicBlock(8, 8, 1), nn.NewDropout(0.1), nn.NewAdaptiveAvgPool2d(nn.Square(1)),
		nn.NewFlatten(1, -1), nn.NewLinear(8, 5))
	p := started(t, model, pipe.Config{Balance: []int{11, 4}, Devices: []torch.Device{d, d}, Chunks: 3,
		Checkpoint: pipe.ExceptLast})
	o := must.Get(optim.New("adam", optim.Config{LR: 0.01}))(t)
	defer o.Close()
	c := newCtx(t, torch.Options{Device: aside, Threads: 1})
	q := problem{input: normal(7, 3, 8, 8), target: classes(7, 5)}
	var after torch.Memory
	var elsewhere int64 // of the allocator, and on no account
	for step := range 200 {
		b := q.batch(c, p.Stages(), step%3)
		elsewhere = requested(d) - d.Memory().Live
		if d.Kind != torch.KindCPU && step > 1 {
			p.Hold(func(_, action int) {
				if now := requested(d) - d.Memory().Live; now != elsewhere {
					t.Errorf("step %d, before action %d: the allocator was asked for %+d bytes more than "+
						"the account has", step, action, now-elsewhere)
				}
			})
		}
		if _, err := p.Step(context.Background(), b, nn.CrossEntropy()); err != nil {
			t.Fatal(err)
		}
		must.Do(t, p.Update(context.Background(), o))
		nn.ZeroGrads(model)
		c.Close()
		switch now := d.Memory(); {
		case step < 5:
			after = now
		case now.Live != after.Live || now.Peak != after.Peak || now.Taken > after.Taken:
			t.Fatalf("after step %d the account has %+v, after the fifth %+v", step+1, now, after)
		}
	}
}

// Between forward and backward a stage holds no output that its own backward does not need, once the
// next stage has received it; here a Linear's. A Tanh needs its output.
func TestOutputIsReleasedWhenReceived(t *testing.T) {
	torchtest.Check(t)
	const output = 8 * 16 * 4
	for _, row := range []struct {
		last nn.Layer
		want int64
	}{{nn.NewIdentity(), 0}, {nn.NewTanh(), output}} {
		model := nn.NewSequential(nn.NewLinear(4, 16), row.last, nn.NewLinear(16, 2))
		p := started(t, model, pipe.Config{Balance: []int{2, 1}, Chunks: 4, Checkpoint: pipe.Never})
		c := torchtest.New(t, torch.Options{Device: aside})
		before := p.Stages()[0].Device.Memory().Live
		run := must.Get(p.Forward(context.Background(),
			pipe.Batch{Input: pipe.Rows(c.Ones(torch.Float32, 8, 4))}))(t)
		if got := p.Stages()[0].Device.Memory().Live - before; got != row.want {
			t.Errorf("%T: %d bytes are held, want %d", row.last, got, row.want)
		}
		run.Close()
	}
}
