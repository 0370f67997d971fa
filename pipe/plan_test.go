package pipe_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/plan"
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
		"mixed": {Balance: []int{4, 5}, Chunks: 3, Checkpoint: pipe.PerStage(pipe.Always, pipe.Optimal),
			Seed: 1},
		"fixed": {Balance: []int{3, 3, 3}, Chunks: 4,
			Checkpoint: pipe.PerStage(pipe.Always, pipe.Never, pipe.ExceptLast), Seed: 1},
	} {
		if cfg.Checkpoint.String() != "always,never,except_last" {
			cfg.Budget = []int64{0, 0}
			unbound := must.Get(q.planned(cfg))(t)
			for i, s := range unbound.plan.Stages {
				if s.Policy == plan.Optimal {
					cfg.Budget[i] = unbound.plans[i].Peak - 100
				}
			}
		}
		want, err := q.planned(cfg)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		given, err := plan.Parse(want.plan.String())
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, err := q.planned(pipe.Config{Plan: given, Seed: 1})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if d := want.differs(got.record); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		for i := range want.plans {
			if want.plan.Stages[i].Policy != plan.Optimal {
				continue
			}
			most := want.plan.Devices[want.plan.Stages[i].Device].Peak
			// otherwise a peak depends on which stage is ahead
			meet := want.plan.Program.Capacity == schedule.Meet
			if ran := []int64{want.peaks[0][i], got.peaks[0][i]}; slices.Max(ran) > most || meet &&
				slices.Min(ran) != most {
				t.Errorf("%s: stage %d takes %d bytes, by the plan that was written down %d, and %d are "+
					"planned", name, i, ran[0], ran[1], most)
			}
		}
		if got.plan.String() != want.plan.String() {
			t.Errorf("%s: ran\n%v, want\n%v", name, got.plan, want.plan)
		}
		short := q // a batch of two rows
		short.rows, short.input, short.target = 2, normal(2, 12), classes(2, 3)
		fewer, err := short.planned(pipe.Config{Plan: given, Seed: 1})
		if err != nil {
			t.Fatalf("%s, 2 micro-batches: %v", name, err)
		}
		cfg.Checkpoint, cfg.Budget = pipe.Never, nil
		want = must.Get(short.planned(cfg))(t)
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
	parsed := func(from, to string) *plan.Plan {
		return must.Get(plan.Parse(strings.ReplaceAll(text, from, to)))(t)
	}
	swapped := must.Get(plan.Parse(`device cpu:1
device cpu:0
stage 0 device=cpu:0 layers=4 policy=never
  0 S0 L B0
stage 1 device=cpu:1 layers=5 policy=never
  0 S0 L B0
program whole stages=2 micro-batches=1
worker 0: 0>1F0 1F0 1B0 1B0>0
worker 1: 0F0 0F0>1 1>0B0 0B0
`))(t)
	broken := parsed("cpu:0", "cpu:0")
	broken.Stages[0].MicroBatches[0].Ops = nil
	for want, cfg := range map[string]pipe.Config{
		"Chunks is 3: the plan has fewer micro-batches; want at most 2": {Plan: parsed("cpu:0", "cpu:0"),
			Chunks: 3},
		"leave Balance, Checkpoint, Budget and Schedule out": {Plan: parsed("cpu:0", "cpu:0"),
			Balance: []int{4, 5}},
		"Balance is [3 5]; want at least 1 layer":             {Plan: parsed("layers=4", "layers=3")},
		"Plan is for 2 stages and 2 micro-batches: stage 0: ": {Plan: parsed("cpu:0", "tpu:0")},
		"its worker 0 has stages of other devices":            {Plan: swapped},
		"micro-batches: plan: ":                               {Plan: broken},
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
	p := must.Get(pipe.New(model, pipe.Config{Plan: parsed("cpu:0", "cpu:0")}))(t)
	defer p.Close()
	if p.Plan() != nil {
		t.Error("there is a plan of a step that was not taken")
	}
	c := newCtx(t, torch.Options{Threads: 1})
	q := deepProblem()
	if _, err := p.Step(context.Background(),
		pipe.Batch{Input: pipe.Rows(q.input(c, 0)), Target: pipe.Rows(q.target(c, 0))}, q.loss); err != nil {
		t.Error(err)
	}
	if got := p.Plan().String(); got != text {
		t.Errorf("ran\n%s", got)
	}
}

// oneAtATime is GPipe with links on which one value may wait.
func oneAtATime(c schedule.Config) (*schedule.Program, error) {
	c.Capacity = 1
	return schedule.GPipe(c)
}

// A schedule whose program cannot run is refused before anything is made, with what is wrong with it.
func TestScheduleThatCannotRun(t *testing.T) {
	torchtest.Check(t)
	program := must.Get(schedule.GPipe(schedule.Config{Stages: 3, MicroBatches: 2}))(t)
	incomplete := func(c schedule.Config) (*schedule.Program, error) {
		p, err := schedule.GPipe(c)
		if err == nil {
			p.Workers[0] = p.Workers[0][1:]
		}
		return p, err
	}
	with := func(change func(*schedule.Config)) schedule.Generator {
		return func(c schedule.Config) (*schedule.Program, error) { change(&c); return schedule.GPipe(c) }
	}
	for _, row := range []struct {
		schedule schedule.Generator
		chunks   int
		want     string
	}{
		{with(func(c *schedule.Config) { c.Stages, c.Worker = 3, nil }), 2,
			"stages on the workers [0 1 2]; want"},
		{with(func(c *schedule.Config) { c.MicroBatches = 1 }), 2, "for 1 micro-batches"},
		{with(func(c *schedule.Config) { c.Worker = []int{1, 0} }), 2, "stages on the workers [1 0]; want"},
		{incomplete, 2, "missing: 0F0 is on no worker"},
		{schedule.Fixed(program), 2, "it is whole, for 3 stages and 2 micro-batches"},
	} {
		model := small()
		p, err := pipe.New(model, pipe.Config{Balance: []int{2, 2}, Chunks: row.chunks,
			Schedule: row.schedule})
		var refused *pipe.ConfigError
		if !errors.As(err, &refused) || refused.Field != "Schedule" ||
			!strings.Contains(err.Error(), row.want) {
			t.Errorf("%v, %v; want %q", p, err, row.want)
		}
		if nn.Params(model)[0].Exists() {
			t.Error("a parameter was made")
		}
	}
}

// Forward has all outputs before the first backward, which other schedules than GPipe are not for.
func TestForwardNeedsAScheduleInTwoParts(t *testing.T) {
	torchtest.Check(t)
	c := newCtx(t, torch.Options{})
	batch := pipe.Batch{Input: pipe.Rows(normal(4, 4)(c, 0)), Target: pipe.Rows(normal(4, 3)(c, 1))}
	p := started(t, small(), pipe.Config{Balance: []int{2, 2}, Chunks: 4, Schedule: schedule.OneFOneB})
	_, err := p.Forward(context.Background(), batch)
	var refused *pipe.ConfigError
	if !errors.As(err, &refused) || refused.Field != "Schedule" ||
		!strings.Contains(err.Error(), "want one such as schedule.GPipe, or Step") {
		t.Errorf("Forward under 1F1B: %v", err)
	}
	if _, err := p.Step(context.Background(), batch, squares{}); err != nil {
		t.Error(err)
	}
	if y, err := eval(p, context.Background(), batch.Input[0].Tensor); err != nil {
		t.Error(err)
	} else {
		y.Free()
	}
}

// deep is a model of Linear and Tanh, 16 wide and wider in the second half.
func deep() *nn.Sequential {
	return nn.NewSequential(nn.NewLinear(12, 16), nn.NewTanh(), nn.NewLinear(16, 16), nn.NewTanh(),
		nn.NewLinear(16, 40), nn.NewTanh(), nn.NewLinear(40, 40), nn.NewTanh(), nn.NewLinear(40, 3))
}

func deepProblem() problem {
	return problem{model: deep, loss: nn.CrossEntropy(), input: normal(12, 12), target: classes(12, 3),
		rows: 12, steps: 2}
}

// shortages are the stages that an error says are short of memory.
func shortages(t *testing.T, err error) *plan.MemoryError {
	t.Helper()
	var short *plan.MemoryError
	if !errors.As(err, &short) || !errors.Is(err, torch.ErrOutOfMemory) {
		t.Fatalf("got %v, want a *plan.MemoryError", err)
	}
	return short
}

// TestAllShortagesAreTold: stages that need more than their budgets are listed at once, each with
// what will do, and with exactly that all of them train; with one byte less for any, that one is
// listed alone.
func TestAllShortagesAreTold(t *testing.T) {
	torchtest.Check(t)
	q := deepProblem()
	config := func(budget ...int64) pipe.Config {
		return pipe.Config{Balance: []int{4, 2, 3}, Chunks: 3, Checkpoint: pipe.Optimal, Seed: 1,
			Budget: budget}
	}
	unbound := must.Get(q.planned(config(0)))(t)
	var bases []int64
	for _, s := range unbound.plans {
		bases = append(bases, s.Base)
	}
	_, err := q.planned(config(bases...))
	short := shortages(t, err)
	var least []int64
	for i, s := range short.Stages {
		if s.Stage != i || s.Device != torch.CPU(i).String() || s.Limit != bases[i] || s.Least <= s.Limit ||
			!strings.HasPrefix(s.SetBy, "layer ") {
			t.Errorf("shortage %d is %+v", i, s)
		}
		for _, want := range []string{s.String(), "use a limit of at least "} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("no %q in %v", want, err)
			}
		}
		least = append(least, s.Least)
	}
	if len(least) != 3 || short.Least() != slices.Max(least) {
		t.Fatalf("%d stages are listed, the most is %d: %v", len(least), short.Least(), err)
	}
	if _, err := q.planned(config(least...)); err != nil {
		t.Errorf("with %v bytes: %v", least, err)
	}
	for i := range least {
		less := slices.Clone(least)
		less[i]--
		_, err := q.planned(config(less...))
		if short := shortages(t, err); len(short.Stages) != 1 || short.Stages[0].Stage != i ||
			short.Stages[0].Least != least[i] {
			t.Errorf("with %v bytes: %v", less, err)
		}
	}
}

// TestParametersBeyondABudget: New lists all devices that cannot hold the parameters and buffers of
// their stages, a replica of a tied one included, and allocates nothing. With exactly what they
// take it succeeds.
func TestParametersBeyondABudget(t *testing.T) {
	torchtest.Check(t)
	model := nn.NewSequential(nn.NewLinear(10, 20), nn.NewBatchNorm1d(20, nn.BatchNormConfig{}),
		nn.NewLinear(20, 30))
	config := func(a, b int64) pipe.Config {
		return pipe.Config{Balance: []int{2, 1}, Checkpoint: pipe.Optimal, Budget: []int64{a, b}}
	}
	// weights and biases; of the batch norm also running statistics, and its int64 count
	const first, second = 4*(10*20+20) + 4*(4*20) + 8, 4 * (20*30 + 30)
	_, err := pipe.New(model, config(first-1, second-1))
	short := shortages(t, err)
	if len(short.Stages) != 2 || short.Stages[0].Least != first || short.Stages[1].Least != second ||
		short.Least() != max(first, second) ||
		!strings.Contains(err.Error(), "parameters and buffers alone") {
		t.Errorf("want %d and %d: %v", first, second, err)
	}
	if n := torch.CPU(0).Memory().Live + torch.CPU(1).Memory().Live; n != 0 {
		t.Errorf("%d bytes are live", n)
	}
	p := must.Get(pipe.New(model, config(first, second)))(t)
	p.Close()
	nn.Free(model)

	// an embedding of 6 x 4 and a Linear of 4, a norm, and a head with the embedding's weight
	model = tied(false, false)
	cfg := pipe.Config{Balance: []int{2, 2}, Checkpoint: pipe.Optimal, Budget: []int64{1, 1}}
	_, err = pipe.New(model, cfg)
	if s := shortages(t, err).Stages; len(s) != 2 || s[0].Least != 4*(6*4+4*4+4) || s[1].Least != 4*(4+4)+
		4*(6*4) {
		t.Errorf("tied: %v", err)
	}
	// the replica shares its memory
	cfg.Devices, cfg.Checkpoint, cfg.Budget = []torch.Device{torch.CPU(5), torch.CPU(5)}, pipe.Never, nil
	torch.CPU(5).SetLimit(4 * (6*4 + 4*4 + 4 + 4 + 4))
	defer torch.CPU(5).SetLimit(0)
	p = must.Get(pipe.New(model, cfg))(t)
	p.Close()
	nn.Free(model)
}

// TestOpenThenPlace: a pipe that was not placed plans as it does when it was, and does nothing
// else; then it trains like any.
func TestOpenThenPlace(t *testing.T) {
	torchtest.Check(t)
	q := deepProblem()
	c := newCtx(t, torch.Options{Device: torch.CPU(7)})
	b := pipe.Batch{Input: pipe.Rows(q.input(c, 0)), Target: pipe.Rows(q.target(c, 0))}
	model := deep()
	p := must.Get(pipe.Open(model, pipe.Config{Balance: []int{4, 5}, Chunks: 3, Checkpoint: pipe.Optimal,
		Seed: 1}))(t)
	defer nn.Free(model)
	defer p.Close()
	ctx := context.Background()
	update := func(int, *torch.Ctx) error { return nil }
	if _, err := p.Step(ctx, b, q.loss); !errors.Is(err, pipe.ErrNotPlaced) {
		t.Errorf("Step: %v", err)
	}
	if _, err := eval(p, ctx, b.Input[0].Tensor); !errors.Is(err, pipe.ErrNotPlaced) {
		t.Errorf("Infer: %v", err)
	}
	if err := p.OnStages(ctx, update); !errors.Is(err, pipe.ErrNotPlaced) {
		t.Errorf("OnStages: %v", err)
	}
	if _, err := p.PlanFor(ctx, b, q.loss); err != nil {
		t.Fatal(err)
	}
	before := p.Plan().Devices
	if n := p.Unplaced(0) + p.Unplaced(1); n == 0 || torch.CPU(0).Memory().Live+
		torch.CPU(1).Memory().Live != 0 {
		t.Errorf("%d bytes are not placed, %d and %d are live", n, torch.CPU(0).Memory().Live,
			torch.CPU(1).Memory().Live)
	}
	for range 2 {
		must.Do(t, p.Place())
	}
	if n := p.Unplaced(0) + p.Unplaced(1); n != 0 {
		t.Errorf("%d bytes are not placed", n)
	}
	if _, err := p.Step(ctx, b, q.loss); err != nil {
		t.Fatal(err)
	}
	for i, s := range p.Plan().Devices {
		if s.Base != before[i].Base || s.Peak != before[i].Peak {
			t.Errorf("stage %d: %d bytes with a base of %d, planned %d with %d", i, s.Peak, s.Base,
				before[i].Peak, before[i].Base)
		}
	}
}

// TestBudgetIsTheDevicesLimit: while a pipe is open its budget is enforced, whoever allocates, and
// afterwards the limit is the one before.
func TestBudgetIsTheDevicesLimit(t *testing.T) {
	torchtest.Check(t)
	model := deep()
	budgets := []int64{100_000, 200_000}
	p := must.Get(pipe.New(model, pipe.Config{Balance: []int{4, 5}, Checkpoint: pipe.Optimal,
		Budget: budgets}))(t)
	defer nn.Free(model)
	for i, budget := range budgets {
		c := torch.NewCtx(torch.Options{Device: torch.CPU(i)})
		rest := budget - torch.CPU(i).Memory().Live
		if err := torch.Try(func() { c.Empty(torch.Uint8, rest+1) }); !errors.Is(err, torch.ErrOutOfMemory) {
			t.Errorf("one byte more than the budget of %d bytes: %v", budget, err)
		}
		if err := torch.Try(func() { c.Empty(torch.Uint8, rest) }); err != nil {
			t.Errorf("what the budget of %d bytes leaves: %v", budget, err)
		}
		c.Close()
	}
	p.Close()
	for i := range budgets {
		if m := torch.CPU(i).Memory(); m.Limit != 0 {
			t.Errorf("%v has a limit of %d bytes after Close", torch.CPU(i), m.Limit)
		}
	}
}

// hoarder is an optimizer that will make state of as many bytes for the stages, which are told by
// their first parameters.
type hoarder struct{ optim.Optimizer }

var hoards = map[string]int64{"0.weight": 5000, "4.weight": 700}

func (hoarder) Need(params []nn.NamedParam) optim.Need {
	return optim.Need{State: hoards[params[0].Name]}
}

// TestStateStaysFree: what the optimizer is still to make on a stage is part of what it needs, and
// nothing that is planned takes it.
func TestStateStaysFree(t *testing.T) {
	torchtest.Check(t)
	q := deepProblem()
	reserve := []int64{hoards["0.weight"], hoards["4.weight"]}
	config := func(reserved bool, budget ...int64) pipe.Config {
		cfg := pipe.Config{Balance: []int{4, 5}, Chunks: 3, Checkpoint: pipe.Optimal, Seed: 1, Budget: budget}
		if reserved {
			cfg.Optimizer = hoarder{}
		}
		return cfg
	}
	var least [2][]int64
	for k := range least {
		_, err := q.planned(config(k == 1, 2700, 9800)) // parameters and batch fit, and no plan
		for _, s := range shortages(t, err).Stages {
			least[k] = append(least[k], s.Least)
		}
	}
	for i := range reserve {
		if len(least[0]) != 2 || len(least[1]) != 2 || least[1][i]-least[0][i] != reserve[i] {
			t.Fatalf("the least is %v bytes, with %v reserved %v", least[0], reserve, least[1])
		}
	}
	got := must.Get(q.planned(config(true, least[1]...)))(t)
	for step, peaks := range got.peaks {
		for i, peak := range peaks {
			if peak > least[1][i]-reserve[i] {
				t.Errorf("step %d: stage %d holds %d of %d bytes, of which %d are reserved", step, i, peak,
					least[1][i], reserve[i])
			}
		}
	}
}
