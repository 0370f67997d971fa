package autoremat_test

import (
	"errors"
	"testing"

	"penstock.example/autoremat"
	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/torch"
)

// fixture is a module on a context, with its model's parameters.
type fixture struct {
	*torch.Ctx
	model *nn.Sequential
	m     *autoremat.Module
}

func newFixture(t *testing.T, model *nn.Sequential, config autoremat.Config) *fixture {
	t.Helper()
	torchtest.Check(t)
	c := torch.NewCtx(torch.Options{Device: device, Threads: 1})
	nn.Materialise(c, nn.State(model), 3)
	m := must.Get(autoremat.New(model, config))(t)
	t.Cleanup(func() {
		m.Close()
		c.Close()
		nn.Free(model)
	})
	return &fixture{c, model, m}
}

func (b *fixture) normal(shape ...int64) *torch.Tensor {
	return b.Normal_(b.Empty(torch.Float32, shape...), 0, 1)
}

func (b *fixture) ctx() *nn.Ctx {
	b.SetGrad(true)
	return nn.NewCtx(b.Ctx, nn.Config{Training: true, Seed: 1})
}

// run is Forward of the module, and back a backward through it, with an error instead of a panic.
func (b *fixture) run(n *nn.Ctx, x *torch.Tensor) (y *torch.Tensor, err error) {
	err = attempt(func() { y = b.m.Forward(n, x) })
	return y, err
}

func (b *fixture) back(y *torch.Tensor) error {
	return attempt(func() { b.Backward([]*torch.Tensor{b.Sum(b.Mul(y, y))}, []*torch.Tensor{nil}, false) })
}

// attempt runs f and returns its panic as an error.
func attempt(f func()) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = torch.Caught(p)
		}
	}()
	f()
	return nil
}

// step goes forward and back, with the sum of squares for a loss.
func (b *fixture) step(x *torch.Tensor) error {
	mark := b.Mark()
	defer b.Release(mark)
	y, err := b.run(b.ctx(), x)
	if err != nil {
		return err
	}
	defer nn.ZeroGrads(b.model)
	return b.back(y)
}

// TestEvaluationIsTheModel: where no gradients are recorded the module only runs the model: it
// measures nothing and keeps nothing.
func TestEvaluationIsTheModel(t *testing.T) {
	b := newFixture(t, mlp().model(), autoremat.Config{Limit: 1 << 30})
	x := b.normal(16, 20)
	for _, training := range []bool{false, true} {
		for _, grad := range []bool{false, true} {
			if training && grad {
				continue
			}
			run := func(l nn.Layer) string {
				b.SetGrad(grad)
				return string(torch.Bytes(l.Forward(nn.NewCtx(b.Ctx, nn.Config{Training: training, Seed: 1}), x)))
			}
			before := run(b.model)
			if training { // which has moved statistics
				before = run(b.model)
			}
			if got := run(b.m); got != before {
				t.Errorf("training %v, gradients %v: another output", training, grad)
			}
		}
	}
	if b.m.Plan() != nil {
		t.Error("something was measured")
	}
}

// After the module is closed the device is as it was, and training is refused.
func TestClose(t *testing.T) {
	b := newFixture(t, mlp().model(), autoremat.Config{Limit: 1 << 30})
	device.SetLimit(1 << 32)
	defer device.SetLimit(0)
	x := b.normal(16, 20)
	must.Do(t, b.step(x))
	if got := device.Memory().Limit; got != 1<<30 {
		t.Errorf("the limit is %d while the module is open", got)
	}
	b.m.Close()
	b.m.Close()
	if got := device.Memory().Limit; got != 1<<32 {
		t.Errorf("the limit is %d afterwards", got)
	}
	if err := b.step(x); !errors.Is(err, autoremat.ErrClosed) {
		t.Errorf("training gives %v", err)
	}
}
