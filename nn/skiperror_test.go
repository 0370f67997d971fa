package nn_test

import (
	"errors"
	"strings"
	"testing"

	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/torch"
)

// What a forward does is held against what was declared, by name, at the layer that did otherwise.
func TestSkipsAtRunTimeMustBeWhatWasDeclared(t *testing.T) {
	stash := func(declared string, names ...string) nn.Layer {
		return declaring(declared, "", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			for _, n := range names {
				c.Stash(n, x)
			}
			return x
		})
	}
	pop := func(declared string, names ...string) nn.Layer {
		return declaring("", declared, func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			for _, n := range names {
				c.Pop(n)
			}
			return x
		})
	}
	idle := func(children ...nn.Layer) nn.Layer { // declares children and runs none
		return declaring("", "", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return x }, children...)
	}
	looping := func(children ...nn.Layer) nn.Layer {
		return declaring("", "", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Run(c.Run(x, children...), children...) }, children...)
	}
	second := pop("a", "a")
	early := declaring("", "", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Run(x, second) }, stash("a", "a"), second)
	direct := stashing("a")
	strangers := nn.NewSequential(stash("b", "b"), pop("b", "b"))
	routesOfStrangers := must.Get(strangers.SkipRoutes())(t)
	for _, row := range []struct {
		reason string
		model  nn.Layer
		skips  *nn.SkipStore
		where  string
		want   string
	}{
		{"a stash that is not declared", nn.NewSequential(stash("a", "b", "a"), pop("a", "a")), nil, "0",
			`stash: skip "b" is not declared; call Stashes("b") in the constructor of the module that is running`},
		{"a pop that is not declared", nn.NewSequential(stash("a", "a"), pop("a", "a", "b")), nil, "1",
			`pop: skip "b" is not declared; call Pops("b") in the constructor of the module that is running`},
		{"a stash declared by another module", nn.NewSequential(composite(stash("a", "a"), stash("", "a")), pop("a", "a")), nil, "0.1", `skip "a" is not declared; call Stashes("a")`},
		{"a pop of what one stashes", nn.NewSequential(declaring("a", "", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			c.Stash("a", x)
			return c.Pop("a")
		}), pop("a", "a")), nil, "0", `skip "a" is not declared; call Pops("a")`},
		{"a child's Forward called past Run, which knows not who is running", nn.NewSequential(declaring("", "", direct.Forward, direct), pop("a", "a")), nil, "0", `skip "a" is not declared`},
		{"a stash that is left out", nn.NewSequential(stash("a b", "b"), pop("a b", "a", "b")), nil, "0",
			`stash: skip "a" is declared and was not stashed; stash nil where there is nothing to hand on`},
		{"a pop that is left out", nn.NewSequential(stash("a b", "a", "b"), pop("a b", "b")), nil, "1", `pop: skip "a" is declared and was not popped; pop it even where it is not used`},
		{"two stashes", nn.NewSequential(stash("a", "a", "a"), pop("a", "a")), nil, "0", `stash: skip "a" is stashed twice in one forward`},
		{"two pops", nn.NewSequential(stash("a", "a"), pop("a", "a", "a"), pop("a", "a")), nil, "1", `pop: skip "a" is popped twice in one forward`},
		{"a child that stashes runs twice", nn.NewSequential(looping(stash("a", "a")), pop("a", "a")), nil, "0.0", `stash: skip "a" is stashed again before it was popped`},
		{"a child that pops runs twice", nn.NewSequential(stash("a", "a"), looping(pop("a", "a"))), nil, "1.0", `pop: skip "a" has not been stashed`},
		{"a child that stashes does not run", nn.NewSequential(idle(stash("a", "a")), pop("a", "a")), nil, "1", `pop: skip "a" has not been stashed`},
		{"a child that pops runs before the one that stashes", nn.NewSequential(early), nil, "0.1", `pop: skip "a" has not been stashed`},
		{"a stash outside of a Sequential", stash("a", "a"), nil, "", `stash: skip "a" is stashed outside of a model; run the layer as part of an nn.Sequential`},
		{"a pop outside of a Sequential", pop("a", "a"), nil, "", `pop: skip "a" has not been stashed; run the layer as part of an nn.Sequential`},
		{"a stash into another model's store", stash("a", "a"), nn.NewSkipStore(routesOfStrangers, 0, 2), "", `stash: skip "a" is not a skip of the model that is running`},
		{"a stash into a store of layers that have none", stash("a", "a"), nn.NewSkipStore(nil, 0, 2), "", `stash: skip "a" is not a skip of the model that is running`},
		{"a pop of what a part was not given", pop("b", "b"), nn.NewSkipStore(routesOfStrangers, 1, 2), "", `pop: skip "b" has not been stashed`},
	} {
		t.Run(row.reason, func(t *testing.T) {
			c := nn.NewCtx(torchtest.New(t, torch.Options{}), nn.Config{Skips: row.skips})
			err := torch.Try(func() {
				x := c.Ones(torch.Float32, 2)
				if _, whole := row.model.(*nn.Sequential); whole {
					row.model.Forward(c, x)
					return
				}
				c.RunNamed(nn.NamedLayer{Layer: row.model}, []*torch.Tensor{x})
			})
			if row.skips != nil {
				row.skips.Free()
			}
			if err == nil || !strings.Contains(err.Error(), row.want) || c.Path() != row.where {
				t.Errorf("got %v at %q, want %q at %q", err, c.Path(), row.want, row.where)
			}
		})
	}
}

// What may look like misuse and is none.
func TestSkipsAtRunTimeAllow(t *testing.T) {
	loop := func(times int, children ...nn.Layer) nn.Layer {
		return declaring("", "", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			for range times {
				x = c.Run(x, children...)
			}
			return x
		}, children...)
	}
	twice := nn.NewSequential(loop(2, stashing("a"), nn.NewReLU(), popping("a")))
	for _, row := range []struct {
		reason string
		run    func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor
		want   float32 // of 1
	}{
		{"a stash and its pop in a child that runs twice", twice.Forward, 4},
		{"a model that runs again", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return twice.Forward(c, twice.Forward(c, x)) }, 16},
		{"a pop that no layer runs", nn.NewSequential(stashing("a"), declaring("", "", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return x }, popping("a"))).Forward, 1},
	} {
		t.Run(row.reason, func(t *testing.T) {
			c := nn.NewCtx(torchtest.New(t, torch.Options{}), nn.Config{})
			if got := torch.Item[float32](row.run(c, c.Ones(torch.Float32, 1))); got != row.want {
				t.Errorf("got %v, want %v", got, row.want)
			}
		})
	}
}

func TestAModelWhoseSkipsDoNotMatchDoesNotRun(t *testing.T) {
	c := nn.NewCtx(torchtest.New(t, torch.Options{}), nn.Config{})
	ran := false
	model := nn.NewSequential(doing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { ran = true; return x }), stashing("a"))
	err, _ := caught(func() { model.Forward(c, c.Ones(torch.Float32, 2)) }).(error)
	var e *nn.SkipError
	if !errors.As(err, &e) || ran || len(e.Problems) != 1 {
		t.Errorf("got %v, ran: %v", err, ran)
	}
}
