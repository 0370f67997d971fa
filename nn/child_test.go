package nn_test

import (
	"slices"
	"strings"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/torch"
)

// pair subtracts what two of its layers make of x.
type pair struct {
	nn.Base
	a, b nn.Layer
	run  func(c *nn.Ctx, x *torch.Tensor, l nn.Layer) *torch.Tensor
}

func newPair(a, b nn.Layer, declare bool) *pair {
	p := &pair{a: a, b: b, run: func(c *nn.Ctx, x *torch.Tensor, l nn.Layer) *torch.Tensor { return c.Run(x, l) }}
	if declare {
		p.Child("a", a)
		p.Child("b", b)
	}
	return p
}

func (p *pair) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	return c.Sub(p.run(c, x, p.a), p.run(c, x, p.b))
}

func dropouts() (a, b nn.Layer) { return nn.NewDropout(0.5), nn.NewDropout(0.5) }

func TestModulesRunOnlyTheirChildren(t *testing.T) {
	undeclared := func() *pair { a, b := dropouts(); return newPair(a, b, false) }
	declared := func() *pair { a, b := dropouts(); return newPair(a, b, true) }
	inside := func(l nn.Layer) *nn.Sequential {
		return nn.NewSequential().Add("block", nn.NewSequential().Add("1", l))
	}
	direct := newPair(nn.NewSequential(nn.NewDropout(0.5)), nn.NewSequential(nn.NewDropout(0.5)), true)
	direct.run = func(c *nn.Ctx, x *torch.Tensor, l nn.Layer) *torch.Tensor { return l.Forward(c, x) }
	named := undeclared()
	named.run = func(c *nn.Ctx, x *torch.Tensor, l nn.Layer) *torch.Tensor {
		return c.RunNamed(nn.NamedLayer{Name: "drop", Layer: l}, []*torch.Tensor{x})[0]
	}
	grand := declared()
	grand.b = nn.NewSequential(nn.NewIdentity())
	grand.Child("c", grand.b)
	grand.run = func(c *nn.Ctx, x *torch.Tensor, l nn.Layer) *torch.Tensor {
		if s, ok := l.(*nn.Sequential); ok {
			l = s.Layers()[0].Layer
		}
		return c.Run(x, l)
	}
	checkpoint := undeclared()
	checkpoint.run = func(c *nn.Ctx, x *torch.Tensor, l nn.Layer) *torch.Tensor {
		return c.Checkpoint(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor { return []*torch.Tensor{c.Run(xs[0], l)} }, x)[0]
	}
	const missing = `*nn.Dropout is no declared child of *nn_test.pair, layer "block.1", which runs it; call Child("dropout", the *nn.Dropout) of the *nn_test.pair where it is made`
	for _, row := range []struct {
		name  string
		model nn.Layer
		want  string // "" where it runs
	}{
		{"declared", inside(declared()), ""},
		{"two Dropouts that are not", inside(undeclared()), missing},
		{"a Linear that is not", inside(newPair(nn.NewLinear(4, 4), nn.NewIdentity(), false)),
			`*nn.Linear is no declared child of *nn_test.pair, layer "block.1", which runs it; call Child("linear", the *nn.Linear) of the *nn_test.pair`},
		{"under a name of its own", inside(named), missing},
		{"in a checkpoint", inside(checkpoint), missing},
		{"in a checkpointed module", inside(nn.Checkpointed(undeclared())), missing},
		{"wrapped", inside(newPair(nn.Checkpointed(nn.NewDropout(0.5)), nn.NewIdentity(), false)), missing},
		{"wrapped and declared", inside(newPair(nn.Checkpointed(nn.NewDropout(0.5)), tupleOf(nn.NewSequential(nn.NewDropout(0.5))), true)), ""},
		{"a child's Forward called", inside(direct),
			`*nn.Dropout is no child of *nn_test.pair, layer "block.1", which runs it, but "0" of the module "a"; run that one with Run instead of calling its Forward`},
		{"a child of a child", inside(grand), `*nn.Identity is no child of *nn_test.pair, layer "block.1", which runs it, but "0" of the module "c"; run that one with Run`},
		{"in a model that is no Sequential", undeclared(), "*nn.Dropout is no declared child of the model that this Ctx has run; call Child(\"dropout\", the *nn.Dropout) of the model where it is made"},
		{"declared in one", declared(), ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			base := torchtest.New(t, torch.Options{Grad: true})
			x := base.Ones(torch.Float32, 64, 4).SetRequiresGrad(true)
			nn.Materialise(base, nn.State(row.model), 1)
			defer nn.Free(row.model)
			c := nn.NewCtx(base, nn.Config{Training: true, Seed: 1})
			var y *torch.Tensor
			err := torch.Try(func() { y = row.model.Forward(c, x) })
			switch {
			case row.want == "" && err != nil:
				t.Error(err)
			case row.want == "" && !slices.ContainsFunc(torch.Values[float32](y), func(v float32) bool { return v != 0 }):
				t.Error("two children drew the same mask")
			case row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want)):
				t.Errorf("got  %v\nwant %s", err, row.want)
			}
		})
	}
}

// featureLoss is the mean squared difference of what a layer of the loss makes of output and
// target.
type featureLoss struct {
	nn.Base
	features nn.Layer
	squares  nn.MSELoss
}

func newFeatureLoss(declare bool) *featureLoss {
	l := &featureLoss{features: nn.NewLinear(4, 3), squares: nn.MSE()}
	if declare {
		l.Child("features", l.features)
	}
	return l
}

func (l *featureLoss) Forward(c *nn.Ctx, y, t *torch.Tensor) *torch.Tensor {
	return l.squares.Forward(c, c.Run(y, l.features), c.Run(t, l.features))
}

func (l *featureLoss) forward(c *nn.Ctx, ys, ts []*torch.Tensor) *torch.Tensor {
	return l.Forward(c, ys[0], ts[0])
}

func (l *featureLoss) Reduction() torch.Reduction { return torch.ReduceMean }

// plainLoss is a loss that runs a layer and is no module.
type plainLoss struct{ l *featureLoss }

func (l plainLoss) Forward(c *nn.Ctx, y, t *torch.Tensor) *torch.Tensor { return l.l.Forward(c, y, t) }
func (l plainLoss) Reduction() torch.Reduction                          { return torch.ReduceMean }

// A loss that embeds nn.Base runs the layers that it has declared, whoever computes it.
func TestLossesRunOnlyTheirChildren(t *testing.T) {
	const missing = `*nn.Linear is no declared child of *nn_test.featureLoss, layer "loss", which runs it; call Child("linear", the *nn.Linear)`
	for _, row := range []struct {
		name     string
		loss     func(l *featureLoss) nn.Loss
		declared bool
		want     string
	}{
		{"a module", func(l *featureLoss) nn.Loss { return l }, true, ""},
		{"a module of tuples", func(l *featureLoss) nn.Loss { return nn.TupleLoss(l, l.forward) }, true, ""},
		{"one that has not declared it", func(l *featureLoss) nn.Loss { return l }, false, missing},
		{"one of tuples that has not", func(l *featureLoss) nn.Loss { return nn.TupleLoss(l, l.forward) }, false, missing},
		{"no module", func(l *featureLoss) nn.Loss { return plainLoss{l} }, false,
			"*nn.Linear is run by the loss nn_test.plainLoss, which is no module; embed nn.Base in the loss and call Child("},
	} {
		t.Run(row.name, func(t *testing.T) {
			base := torchtest.New(t, torch.Options{})
			l := newFeatureLoss(row.declared)
			nn.Materialise(base, nn.State(l.features), 1)
			defer nn.Free(l.features)
			x, y := base.Ones(torch.Float32, 2, 4), base.Ones(torch.Float32, 2, 4)
			var got *torch.Tensor
			c := nn.NewCtx(base, nn.Config{Training: true, Loss: row.loss(l), Target: []*torch.Tensor{y}})
			err := torch.Try(func() { got = c.RunNamed(nn.LossLayer(), []*torch.Tensor{x})[0] })
			if row.want == "" && (err != nil || torch.Item[float32](got) != 0) || row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want)) {
				t.Errorf("got %v, %v, want %q", got, err, row.want)
			}
			alone := nn.NewCtx(base, nn.Config{})
			err = torch.Try(func() { nn.RunLoss(alone, row.loss(l), []*torch.Tensor{x}, []*torch.Tensor{y}) })
			if (err == nil) != row.declared {
				t.Errorf("by itself: got %v", err)
			}
		})
	}
}

// Outside of all modules a layer without a parent is a model, which runs as often as one likes;
// another one has to have a name.
func TestModelsOutsideOfModules(t *testing.T) {
	c := nn.NewCtx(torchtest.New(t, torch.Options{}), nn.Config{Training: true, Seed: 1})
	x := c.Ones(torch.Float32, 64)
	first, second := nn.NewDropout(0.5), nn.NewDropout(0.5)
	whole := nn.NewSequential(nn.NewTanh())
	a := c.Run(x, first)
	if err := torch.Try(func() { c.Run(x, first); whole.Forward(c, x) }); err != nil {
		t.Error(err)
	}
	err := torch.Try(func() { c.Run(x, second) })
	if want := "*nn.Dropout is no declared child of the model that this Ctx has run"; err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "run it under a name with RunNamed, or on another Ctx") {
		t.Errorf("got %v, want %s", err, want)
	}
	b := c.RunNamed(nn.NamedLayer{Name: "second", Layer: second}, []*torch.Tensor{x})[0]
	if slices.Equal(torch.Values[float32](a), torch.Values[float32](b)) {
		t.Error("two models drew the same mask")
	}
}

// A module that was copied after its children were declared still has them.
func TestCopiedModules(t *testing.T) {
	c := nn.NewCtx(torchtest.New(t, torch.Options{}), nn.Config{Training: true, Seed: 1})
	copied := *newPair(nn.NewDropout(0.5), nn.NewSequential(nn.NewDropout(0.5)), true)
	if err := torch.Try(func() { nn.NewSequential(&copied).Forward(c, c.Ones(torch.Float32, 4)) }); err != nil {
		t.Error(err)
	}
}
