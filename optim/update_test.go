package optim_test

import (
	"strings"
	"testing"

	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/torch"
)

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
				optim.Scale(c, model, 0.5)
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
				optim.Scale(c, plain, 0.5)
				other.SetLR(0.01 * float64(step+1))
				other.Step(c, plain)
				differ(t, "parameters after Apply", values(model), values(plain))
				differ(t, "state after Apply", state(opt), state(other))
			}
		})
	}
}

// An update that is not any more what was prepared is refused before it changes anything.
func TestApplyOfWhatHasChanged(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	model := newModel(t, torch.CPU(0))
	opt := newOptimizer(t, "adam", optim.Config{})
	for what, change := range map[string]func(){
		"the state of":    func() { opt.Step(c, model) },
		"the gradient of": func() { model[3].Tensor().SetGradOf(nil) },
	} {
		setGrads(c, model, 0)
		u := opt.Prepare(c, model)
		change()
		before, kept := values(model), state(opt)
		message, _ := panicOf(u.Apply).(string)
		if !strings.Contains(message, what) || !strings.Contains(message, "since Prepare") {
			t.Errorf("got %q, want %s", message, what)
		}
		differ(t, "parameters", values(model), before)
		differ(t, "state", state(opt), kept)
		u.Drop()
		must.Do(t, opt.Load(nil, nil, nil))
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
					t.Errorf("broken at %d, first update %v: %s counts %q updates, want %q", at, first, name, n, counted)
				}
			}
			if first {
				slots := map[string]bool{}
				for _, s := range opt.State() {
					slots[s.Param()] = true
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
