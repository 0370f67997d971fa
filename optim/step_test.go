package optim_test

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/torch"
)

// plain trains the model of shapes for some steps in one piece, on one thread of cpu:0, and returns
// what came out.
func plain(t *testing.T, name string, o optim.Config, steps int) (params, kept map[string]string) {
	t.Helper()
	c := torch.NewCtx(torch.Options{Threads: 1})
	defer c.Close()
	model := newModel(t, torch.CPU(0))
	opt := newOptimizer(t, name, o)
	for step := range steps {
		setGrads(c, model, step)
		opt.Step(c, model)
	}
	return values(model), state(opt)
}

// A pipe calls Step on each stage's worker, for the stage's parameters, with the stage's device and
// threads. However the model is cut, the bits must be those of the model in one piece.
func TestStepDoesNotDependOnThePartition(t *testing.T) {
	const steps = 2
	all := []int{0, 1, 2, 3, 4}
	partitions := []struct {
		name   string
		stages [][]int // indices into the list of parameters
	}{
		{"one stage in another order", [][]int{{4, 2, 0, 1, 3}}},
		{"two stages", [][]int{{0, 1}, {2, 3, 4}}},
		{"a stage for each parameter", [][]int{{0}, {1}, {2}, {3}, {4}}},
		{"an empty stage", [][]int{all, {}}},
	}
	for _, row := range rules {
		t.Run(row.title, func(t *testing.T) {
			torchtest.Check(t)
			wantParams, wantState := plain(t, row.name, row.config, steps)
			for _, cut := range partitions {
				for _, concurrent := range []bool{false, true} {
					model := newModel(t, torch.CPU(0))
					opt := newOptimizer(t, row.name, row.config)
					for step := range steps {
						var wg sync.WaitGroup
						for i, stage := range cut.stages {
							var part []nn.NamedParam
							for _, k := range stage {
								part = append(part, model[k])
							}
							work := func() {
								c := torch.NewCtx(torch.Options{Device: torch.CPU(i), Threads: 1 + i})
								defer c.Close()
								setGrads(c, part, step)
								opt.Step(c, part)
							}
							if concurrent {
								wg.Go(work)
							} else {
								work()
							}
						}
						wg.Wait()
					}
					differ(t, cut.name, values(model), wantParams)
					differ(t, cut.name, state(opt), wantState)
				}
			}
		})
	}
}

func TestStepSkipsWhatHasNoGradient(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	model := newModel(t, torch.CPU(0))
	before := values(model)
	opt := newOptimizer(t, "adam", optim.Config{WeightDecay: 0.1})
	setGrads(c, model, 0, "a.bias")
	opt.Step(c, model)
	setGrads(c, model, 1, "a.weight")
	opt.Step(c, model[:4])
	setGrads(c, model, 2, "a.bias")
	opt.Step(c, model)

	want := map[string]int64{"a.bias": 1, "a.weight": 2, "b.weight": 3, "c.weight": 3, "b.bias": 2}
	for name, n := range opt.Steps() {
		if n != want[name] {
			t.Errorf("%s was updated %d times, want %d", name, n, want[name])
		}
	}
	// The one update of a.bias must be a first one: its bias correction is that of its own count.
	alone := newModel(t, torch.CPU(0))
	other := newOptimizer(t, "adam", optim.Config{WeightDecay: 0.1})
	setGrads(c, alone, 1)
	other.Step(c, alone)
	if values(model)["a.bias"] != values(alone)["a.bias"] {
		t.Error("the first update of a parameter depends on the updates of others")
	}
	if values(model)["a.bias"] == before["a.bias"] {
		t.Error("a.bias was never updated")
	}
}

func TestStepRecordsNothingAndKeepsTheMode(t *testing.T) {
	c := torchtest.New(t, torch.Options{Grad: true})
	model := newModel(t, torch.CPU(0))
	opt := newOptimizer(t, "rmsprop", optim.Config{Momentum: 0.9, Centered: true, WeightDecay: 0.1})
	setGrads(c, model, 0)
	mark := c.Mark()
	opt.Step(c, model)
	if !c.Grad() {
		t.Error("the context does not record any more")
	}
	if c.Mark() != mark {
		t.Error("temporaries are left in the context")
	}
	for _, s := range opt.State() {
		if s.Tensor.RequiresGrad() {
			t.Errorf("%s is in the graph", s.Name)
		}
	}
	for _, p := range model {
		if !p.Tensor().RequiresGrad() {
			t.Errorf("%s is not trainable any more", p.Name)
		}
	}
}

// State is charged to the device of the step, to the byte, and a step needs no more than its
// temporaries beyond that, of one parameter at a time; and a few bytes for the numbers that
// libtorch makes tensors of.
func TestMemory(t *testing.T) {
	const device, size, largest, numbers = 3, 4 * elements, 4 * 100_003, 64
	for _, row := range rules {
		t.Run(row.title, func(t *testing.T) {
			torchtest.Check(t)
			d := torch.CPU(device)
			c := torch.NewCtx(torch.Options{Device: d, Threads: 1})
			defer c.Close()
			model := newModel(t, torch.CPU(0))
			opt := newOptimizer(t, row.name, row.config)
			setGrads(c, model, 0)
			start := d.Memory().Live
			for step := range 3 {
				d.ResetPeak()
				before := d.Memory().Live
				opt.Step(c, model)
				m := d.Memory()
				if got, want := m.Live-start, row.slots*size; got != want {
					t.Fatalf("step %d: the state takes %d bytes, want %d", step, got, want)
				}
				if extra, most := m.Peak-max(before, m.Live), row.temporaries*largest+numbers; extra > most {
					t.Errorf("step %d: temporaries take %d bytes, want at most %d", step, extra, most)
				}
			}
			opt.Close()
			opt.Close()
			if got := d.Memory().Live; got != start {
				t.Errorf("%d bytes are live after Close", got-start)
			}
		})
	}
}

// An update that finds no memory is an *Error of the operator; what it had taken is given back, and
// the optimizer works when there is room again.
func TestStepOutOfMemory(t *testing.T) {
	torchtest.Check(t)
	d := torch.CPU(4)
	c := torch.NewCtx(torch.Options{Device: d, Threads: 1})
	defer c.Close()
	model := newModel(t, torch.CPU(0))
	opt := newOptimizer(t, "adam", optim.Config{})
	setGrads(c, model, 0)
	// Room for exp_avg of the largest parameter but not for exp_avg_sq.
	d.SetLimit(d.Memory().Live + 600_000)
	err := torch.Try(func() { opt.Step(c, model) })
	d.SetLimit(0)
	if !errors.Is(err, torch.ErrOutOfMemory) {
		t.Fatalf("got %v", err)
	}
	c.Close()
	if n := opt.Steps()["c.weight"]; n != 0 {
		t.Errorf("c.weight counts %d steps", n)
	}
	for _, s := range opt.State() {
		if strings.HasSuffix(s.Name, "c.weight") {
			t.Errorf("there is %s", s.Name)
		}
	}
	opt.Step(c, model)
	if n := opt.Steps()["c.weight"]; n != 1 {
		t.Errorf("c.weight counts %d steps after another one", n)
	}
}

func TestStateIsSortedAndNamed(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	model := newModel(t, torch.CPU(0))
	want := map[string]string{
		"sgd":     "momentum.a.bias momentum.a.weight momentum.b.bias momentum.b.weight momentum.c.weight",
		"rmsprop": "grad_avg.b.bias grad_avg.b.weight momentum.b.bias momentum.b.weight square_avg.b.bias square_avg.b.weight",
		"adamw":   "exp_avg.b.bias exp_avg.b.weight exp_avg_sq.b.bias exp_avg_sq.b.weight",
	}
	for name, config := range map[string]optim.Config{"sgd": {Momentum: 0.9}, "rmsprop": {Momentum: 0.9, Centered: true}, "adamw": {}} {
		opt := newOptimizer(t, name, config)
		setGrads(c, model, 0)
		if name != "sgd" {
			setGrads(c, model, 0, "a.bias", "a.weight", "c.weight")
		}
		opt.Step(c, model)
		var got []string
		for _, s := range opt.State() {
			got = append(got, s.Name)
		}
		if strings.Join(got, " ") != want[name] {
			t.Errorf("%s: got %v, want %s", name, got, want[name])
		}
	}
}

func TestStepAfterClosePanics(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	model := newModel(t, torch.CPU(0))
	opt := newOptimizer(t, "sgd", optim.Config{})
	opt.Close()
	if opt.State() != nil || len(opt.Steps()) != 0 {
		t.Error("there is state after Close")
	}
	if err := opt.Load(nil, nil, nil); err == nil {
		t.Error("Load after Close worked")
	}
	defer func() {
		if r := recover(); r != "optim: Step after Close" {
			t.Errorf("got %v", r)
		}
	}()
	opt.Step(c, model)
}
