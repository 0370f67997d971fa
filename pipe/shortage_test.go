package pipe_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/planner"
	"penstock.example/torch"
)

// deep is a model of Linear and Tanh, 16 wide and wider in the second half.
func deep() *nn.Sequential {
	return nn.NewSequential(nn.NewLinear(12, 16), nn.NewTanh(), nn.NewLinear(16, 16), nn.NewTanh(),
		nn.NewLinear(16, 40), nn.NewTanh(), nn.NewLinear(40, 40), nn.NewTanh(), nn.NewLinear(40, 3))
}

func deepProblem() problem {
	return problem{model: deep, loss: nn.CrossEntropy(), input: normal(12, 12), target: classes(12, 3), rows: 12, steps: 2}
}

// shortages are the stages that an error says are short of memory.
func shortages(t *testing.T, err error) *planner.MemoryError {
	t.Helper()
	var short *planner.MemoryError
	if !errors.As(err, &short) || !errors.Is(err, torch.ErrOutOfMemory) {
		t.Fatalf("got %v, want a *planner.MemoryError", err)
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
		return pipe.Config{Balance: []int{4, 2, 3}, Chunks: 3, Checkpoint: pipe.Optimal, Seed: 1, Budget: budget}
	}
	unbound, err := q.planned(config(0))
	if err != nil {
		t.Fatal(err)
	}
	var bases []int64
	for _, s := range unbound.plans {
		bases = append(bases, s.Base)
	}
	_, err = q.planned(config(bases...))
	short := shortages(t, err)
	var least []int64
	for i, s := range short.Stages {
		if s.Stage != i || s.Device != torch.CPU(i).String() || s.Limit != bases[i] || s.Least <= s.Limit || !strings.HasPrefix(s.SetBy, "layer ") {
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
		if short := shortages(t, err); len(short.Stages) != 1 || short.Stages[0].Stage != i || short.Stages[0].Least != least[i] {
			t.Errorf("with %v bytes: %v", less, err)
		}
	}
}

// TestParametersBeyondABudget: New lists all devices that cannot hold the parameters and buffers of
// their stages, a replica of a tied one included, and allocates nothing. With exactly what they
// take it succeeds.
func TestParametersBeyondABudget(t *testing.T) {
	torchtest.Check(t)
	model := nn.NewSequential(nn.NewLinear(10, 20), nn.NewBatchNorm1d(20, nn.BatchNormConfig{}), nn.NewLinear(20, 30))
	config := func(a, b int64) pipe.Config {
		return pipe.Config{Balance: []int{2, 1}, Checkpoint: pipe.Optimal, Budget: []int64{a, b}}
	}
	// weights and biases; of the batch norm also running statistics, and its int64 count
	const first, second = 4*(10*20+20) + 4*(4*20) + 8, 4 * (20*30 + 30)
	_, err := pipe.New(model, config(first-1, second-1))
	short := shortages(t, err)
	if len(short.Stages) != 2 || short.Stages[0].Least != first || short.Stages[1].Least != second || short.Least() != max(first, second) || !strings.Contains(err.Error(), "parameters and buffers alone") {
		t.Errorf("want %d and %d: %v", first, second, err)
	}
	if n := torch.CPU(0).Memory().Live + torch.CPU(1).Memory().Live; n != 0 {
		t.Errorf("%d bytes are live", n)
	}
	p, err := pipe.New(model, config(first, second))
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	nn.Free(model)

	// an embedding of 6 x 4 and a Linear of 4, a norm, and a head with the embedding's weight
	model = tied(false, false)
	cfg := pipe.Config{Balance: []int{2, 2}, Checkpoint: pipe.Optimal, Budget: []int64{1, 1}}
	_, err = pipe.New(model, cfg)
	if s := shortages(t, err).Stages; len(s) != 2 || s[0].Least != 4*(6*4+4*4+4) || s[1].Least != 4*(4+4)+4*(6*4) {
		t.Errorf("tied: %v", err)
	}
	// the replica shares its memory
	cfg.Devices, cfg.Checkpoint, cfg.Budget = []torch.Device{torch.CPU(5), torch.CPU(5)}, pipe.Never, nil
	torch.CPU(5).SetLimit(4 * (6*4 + 4*4 + 4 + 4 + 4))
	defer torch.CPU(5).SetLimit(0)
	if p, err = pipe.New(model, cfg); err != nil {
		t.Fatal(err)
	}
	p.Close()
	nn.Free(model)
}

// TestOpenThenPlace: a pipe that was not placed plans as it does when it was, and does nothing
// else; then it trains like any.
func TestOpenThenPlace(t *testing.T) {
	torchtest.Check(t)
	q := deepProblem()
	c := torch.NewCtx(torch.Options{Device: torch.CPU(7)})
	defer c.Close()
	b := pipe.Batch{Input: pipe.Rows(q.input(c, 0)), Target: pipe.Rows(q.target(c, 0))}
	model := deep()
	p, err := pipe.Open(model, pipe.Config{Balance: []int{4, 5}, Chunks: 3, Checkpoint: pipe.Optimal, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
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
	if n := p.Unplaced(0) + p.Unplaced(1); n == 0 || torch.CPU(0).Memory().Live+torch.CPU(1).Memory().Live != 0 {
		t.Errorf("%d bytes are not placed, %d and %d are live", n, torch.CPU(0).Memory().Live, torch.CPU(1).Memory().Live)
	}
	for range 2 {
		if err := p.Place(); err != nil {
			t.Fatal(err)
		}
	}
	if n := p.Unplaced(0) + p.Unplaced(1); n != 0 {
		t.Errorf("%d bytes are not placed", n)
	}
	if _, err := p.Step(ctx, b, q.loss); err != nil {
		t.Fatal(err)
	}
	for i, s := range p.Plan().Devices {
		if s.Base != before[i].Base || s.Peak != before[i].Peak {
			t.Errorf("stage %d: %d bytes with a base of %d, planned %d with %d", i, s.Peak, s.Base, before[i].Peak, before[i].Base)
		}
	}
}

// TestBudgetIsTheDevicesLimit: while a pipe is open its budget is enforced, whoever allocates, and
// afterwards the limit is the one before.
func TestBudgetIsTheDevicesLimit(t *testing.T) {
	torchtest.Check(t)
	model := deep()
	budgets := []int64{100_000, 200_000}
	p, err := pipe.New(model, pipe.Config{Balance: []int{4, 5}, Checkpoint: pipe.Optimal, Budget: budgets})
	if err != nil {
		t.Fatal(err)
	}
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
	got, err := q.planned(config(true, least[1]...))
	if err != nil {
		t.Fatal(err)
	}
	for step, peaks := range got.peaks {
		for i, peak := range peaks {
			if peak > least[1][i]-reserve[i] {
				t.Errorf("step %d: stage %d holds %d of %d bytes, of which %d are reserved", step, i, peak, least[1][i], reserve[i])
			}
		}
	}
}
