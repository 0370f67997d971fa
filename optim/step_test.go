package optim_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"penstock.example/internal/gradnorm"
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

func TestStateIsSortedAndNamed(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	model := newModel(t, torch.CPU(0))
	want := map[string]string{
		"sgd": "momentum.a.bias momentum.a.weight momentum.b.bias momentum.b.weight momentum.c.weight",
		"rmsprop": "grad_avg.b.bias grad_avg.b.weight momentum.b.bias momentum.b.weight " +
			"square_avg.b.bias square_avg.b.weight",
		"adamw": "exp_avg.b.bias exp_avg.b.weight exp_avg_sq.b.bias exp_avg_sq.b.weight",
	}
	for name, config := range map[string]optim.Config{"sgd": {Momentum: 0.9}, "rmsprop": {Momentum: 0.9,
		Centered: true}, "adamw": {}} {
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

// A prepared update that is dropped leaves nothing and has changed nothing; one that is applied is
// a Step at the rate and with the gradients of then.
func TestPrepareThenDropOrApply(t *testing.T) {
	for _, row := range rules {
		t.Run(row.title, func(t *testing.T) {
			torchtest.Check(t)
			d := torch.CPU(6)
			c := torch.NewCtx(torch.Options{Device: d, Threads: 1})
			defer c.Close()
			model, plain := newModel(t, d), newModel(t, d)
			opt, other := newOptimizer(t, row.name, row.config), newOptimizer(t, row.name, row.config)
			if n, err := optim.Slots(row.name, row.config); err != nil || int64(n) != row.slots {
				t.Errorf("%d slots, %v, want %d", n, err, row.slots)
			}
			for step := range 3 {
				setGrads(c, model, step)
				before, kept, live := values(model), state(opt), d.Memory().Live
				need := opt.Need(model)
				u := opt.Prepare(c, model)
				if got := d.Memory().Live - live; got != need.State+need.Scratch {
					t.Errorf("step %d: Prepare has allocated %d bytes, and was to need %+v", step, got, need)
				}
				u.Drop()
				u.Drop()
				differ(t, "parameters after Drop", values(model), before)
				differ(t, "state after Drop", state(opt), kept)
				if got := d.Memory().Live; got != live {
					t.Errorf("step %d: Drop leaves %d bytes", step, got-live)
				}

				u = opt.Prepare(c, model)
				opt.SetLR(0.01 * float64(step+1))
				gradnorm.Scale(c, model, 0.5)
				d.ResetPeak()
				most := d.Memory().Peak
				u.Apply()
				if m := d.Memory(); m.Peak != most {
					t.Errorf("step %d: Apply has allocated %d bytes", step, m.Peak-most)
				}
				u.Drop()
				if got := d.Memory().Live - live; got != need.State {
					t.Errorf("step %d: an update leaves %d bytes, want %d", step, got, need.State)
				}

				setGrads(c, plain, step)
				gradnorm.Scale(c, plain, 0.5)
				other.SetLR(0.01 * float64(step+1))
				other.Step(c, plain)
				differ(t, "parameters after Apply", values(model), values(plain))
				differ(t, "state after Apply", state(opt), state(other))
			}
		})
	}
}

// A failure that is no want of memory: parameters before it are updated and counted, those after it
// are as they were, and what is counted has state.
func TestApplyThatBreaks(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	for at := range order {
		for _, first := range []bool{true, false} {
			broken, whole := newModel(t, torch.CPU(0)), newModel(t, torch.CPU(0))
			opt, other := newOptimizer(t, "adam", optim.Config{}), newOptimizer(t, "adam", optim.Config{})
			update := func(o optim.Optimizer, model []nn.NamedParam, step int) {
				setGrads(c, model, step)
				o.Step(c, model)
			}
			if !first {
				update(opt, broken, 0)
				update(other, whole, 0)
			}
			before, kept := values(broken), state(opt)
			live := c.Device().Memory().Live
			optim.Break(opt, at)
			if got := panicOf(func() { update(opt, broken, 1) }); got != "broken" {
				t.Fatalf("got %v", got)
			}
			optim.Mend(opt)
			update(other, whole, 1)
			wantParams, wantState := values(whole), state(other)
			for i, name := range order {
				got, want, counted := values(broken)[name], before[name], kept["steps of "+name]
				if i < at {
					want, counted = wantParams[name], wantState["steps of "+name]
				}
				if got != want {
					t.Errorf("broken at %d, first update %v: %s is of the wrong step", at, first, name)
				}
				if n := state(opt)["steps of "+name]; n != counted {
					t.Errorf("broken at %d, first update %v: %s counts %q updates, want %q", at, first,
						name, n, counted)
				}
			}
			if first {
				slots := map[string]bool{}
				for _, s := range opt.State() {
					slots[s.Param] = true
				}
				if len(slots) != at {
					t.Errorf("broken at %d: %d parameters have state", at, len(slots))
				}
			} else if got := c.Device().Memory().Live; got != live {
				t.Errorf("broken at %d: %d bytes are left", at, got-live)
			}
		}
	}
}

func panicOf(f func()) (value any) {
	defer func() { value = recover() }()
	f()
	return nil
}

// An update that does not fit a limit changes nothing, at whichever of its allocations it is
// refused, and when it is repeated under a higher limit the run has the bits of one that was never
// refused. What fits is what Need says.
func TestRefusedUpdateChangesNothing(t *testing.T) {
	torchtest.Check(t)
	d := torch.CPU(5)
	rapid.Check(t, func(t *rapid.T) {
		row := rapid.SampledFrom(rules).Draw(t, "rule")
		sizes := rapid.SliceOfN(rapid.Int64Range(0, 300), 1, 5).Draw(t, "sizes")
		without := rapid.SliceOfN(rapid.Bool(), len(sizes), len(sizes)).Draw(t, "without a gradient")
		c := torch.NewCtx(torch.Options{Device: d, Threads: 1})
		defer c.Close()
		type run struct {
			m      *module
			params []nn.NamedParam
			opt    optim.Optimizer
		}
		begin := func() run {
			m := &module{}
			for i, n := range sizes {
				m.Param(fmt.Sprint("p", i), nn.Normal(1), n)
			}
			r := run{m: m, params: nn.Params(m)}
			nn.Materialise(c, r.params, 1)
			r.opt, _ = optim.New(row.name, row.config)
			return r
		}
		free := func(r run) { r.opt.Close(); nn.Free(r.m) }
		grads := func(r run, step int) {
			var names []string
			for i, none := range without {
				if none && step == 0 {
					names = append(names, fmt.Sprint("p", i))
				}
			}
			setGrads(c, r.params, step, names...)
		}
		all := func(r run) map[string]string {
			out := values(r.params)
			maps.Copy(out, state(r.opt))
			return out
		}
		plain, refused := begin(), begin()
		defer free(plain)
		defer free(refused)
		for step := range 3 {
			grads(plain, step)
			plain.opt.Step(c, plain.params)
			grads(refused, step)
			before, live := all(refused), d.Memory().Live
			need := refused.opt.Need(refused.params)
			limit, slack := live, rapid.Int64Range(0, 300).Draw(t, "slack")
			for {
				d.SetLimit(limit)
				err := torch.Try(func() { refused.opt.Step(c, refused.params) })
				d.SetLimit(0)
				if err == nil {
					break
				}
				var e *torch.MemoryError
				if !errors.As(err, &e) {
					t.Fatal(err)
				}
				if now := d.Memory().Live; now != live {
					t.Fatalf("step %d, %d bytes available: a refused update leaves %d bytes", step,
						limit-live, now-live)
				}
				if after := all(refused); !maps.Equal(after, before) {
					t.Fatalf("step %d, %d bytes available: a refused update has changed something", step,
						limit-live)
				}
				// so that this allocation is let through and the next may not be
				limit = e.Live + e.Requested + slack
			}
			if took, most := limit-live, need.State+need.Scratch; took > most+slack || took < most &&
				(step > 0 || !slices.Contains(without, true)) {
				t.Fatalf("step %d: an update needed %d bytes, up to %d of them not, and was to need %d",
					step, took, slack, most)
			}
			if !maps.Equal(all(refused), all(plain)) {
				t.Fatalf("step %d: other bits than a run that was never refused", step)
			}
		}
	})
}
