package optim_test

import (
	"testing"

	"penstock/internal/torchtest"
	"penstock/nn"
	"penstock/optim"
	"penstock/torch"
)

// TestUnmade: the state that is still to be made is what the account gains by a step, and nothing afterwards; parameters that do not exist yet count like those that do.
func TestUnmade(t *testing.T) {
	for _, name := range optim.Names() {
		c := torchtest.New(t, torch.Options{Threads: 1})
		o, err := optim.New(name, optim.Config{LR: 0.1})
		if err != nil {
			t.Fatal(err)
		}
		model := nn.NewLinear(30, 20)
		params := nn.Params(model)
		before, ok := optim.Unmade(o, params)
		if !ok {
			t.Fatalf("%s: not known", name)
		}
		nn.Materialise(c, params, 1)
		if n, _ := optim.Unmade(o, params); n != before {
			t.Errorf("%s: %d bytes when parameters exist, %d before", name, n, before)
		}
		for _, p := range params {
			c.NoGrad(func() { p.Tensor().SetGradOf(c.OnesLike(p.Tensor())) })
		}
		live := c.Device().Memory().Live
		o.Step(c, params[:1])
		rest, _ := optim.Unmade(o, params)
		if made := c.Device().Memory().Live - live; made != before-rest {
			t.Errorf("%s: one parameter's state is %d bytes, and %d are left of %d", name, made, rest, before)
		}
		o.Step(c, params[1:])
		if made := c.Device().Memory().Live - live; made != before {
			t.Errorf("%s: the state is %d bytes, said %d", name, made, before)
		}
		if rest, _ = optim.Unmade(o, params); rest != 0 {
			t.Errorf("%s: %d bytes are left", name, rest)
		}
		o.Close()
		nn.Free(model)
	}
	if _, ok := optim.Unmade(foreign{}, nil); ok {
		t.Error("an optimizer of another package is known")
	}
}

type foreign struct{ optim.Optimizer }

// TestRehearse: what is rehearsed is what updates take, and what SquaredNorms takes.
func TestRehearse(t *testing.T) {
	for _, name := range optim.Names() {
		c := torchtest.New(t, torch.Options{Threads: 1})
		o, err := optim.New(name, optim.Config{LR: 0.1})
		if err != nil {
			t.Fatal(err)
		}
		model := nn.NewLinear(300, 200)
		params := nn.Params(model)[:1]
		nn.Materialise(c, nn.State(model), 1)
		var want optim.Update
		other := torch.NewCtx(torch.Options{Device: torch.CPU(9), Threads: 1})
		want, _ = optim.Rehearse(other, o, params[0])
		other.Close()
		c.NoGrad(func() { params[0].Tensor().SetGradOf(c.OnesLike(params[0].Tensor())) })
		peak := func(f func(*torch.Ctx, []nn.NamedParam)) int64 {
			before := c.Device().Memory().Live
			c.Device().ResetPeak()
			f(c, params)
			return c.Device().Memory().Peak - before
		}
		norm := peak(func(c *torch.Ctx, list []nn.NamedParam) { optim.SquaredNorms(c, list) })
		unmade, _ := optim.Unmade(o, params)
		got := optim.Update{Norm: norm, First: peak(o.Step), State: unmade, Later: peak(o.Step)}
		if got != want {
			t.Errorf("%s takes %+v, rehearsed %+v", name, got, want)
		}
		o.Close()
		nn.Free(model)
	}
}
