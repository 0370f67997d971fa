package autoremat_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"penstock.example/autoremat"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/planner"
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
	config.Warmup, config.Repeats = 1, 1
	m, err := autoremat.New(model, config)
	if err != nil {
		t.Fatal(err)
	}
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

// step goes forward and back, with the sum of squares for a loss.
func (b *fixture) step(x *torch.Tensor) error {
	mark := b.Mark()
	defer b.Release(mark)
	n := b.ctx()
	ys, err := b.m.Run(n, x)
	if err != nil {
		return err
	}
	defer nn.ZeroGrads(b.model)
	return b.m.Backward(n, []*torch.Tensor{b.Sum(b.Mul(ys[0], ys[0]))}, nil)
}

// Each shape has a plan of its own, made when it first comes.
func TestShapesHavePlansOfTheirOwn(t *testing.T) {
	var reports []autoremat.Report
	b := newFixture(t, mlp().model(), autoremat.Config{Limit: 1 << 30, Report: func(r autoremat.Report) { reports = append(reports, r) }})
	chosen := func(want int, reason string) {
		t.Helper()
		if len(reports) != want {
			t.Errorf("%d plans were made, want %d: %s", len(reports), want, reason)
		}
	}
	for range 3 {
		if err := b.step(b.normal(16, 20)); err != nil {
			t.Fatal(err)
		}
	}
	chosen(2, "the first batch, and once more when the loss is known")
	first := b.m.Predicted()
	if err := b.step(b.normal(64, 20)); err != nil {
		t.Fatal(err)
	}
	chosen(3, "another shape")
	if b.m.Predicted() <= first {
		t.Errorf("four times the rows take %d bytes, not more than %d", b.m.Predicted(), first)
	}
	if err := b.step(b.normal(64, 20)); err != nil {
		t.Fatal(err)
	}
	if err := b.step(b.normal(16, 20)); err != nil {
		t.Fatal(err)
	}
	chosen(4, "the first shape again")
	if r := reports[1]; r.Limit != 1<<30 || r.Source != "Config.Limit" || r.Inputs != "float32[16,20]" || !r.LossKnown || !strings.Contains(r.String(), "float32[16,20]") {
		t.Errorf("the report is %+v", r)
	}
	if s := b.m.String(); !strings.Contains(s, "float32[16,20]") || !strings.Contains(s, "everything") || strings.Count(s, "\n") < 6 {
		t.Errorf("the table is\n%s", s)
	}
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
	if _, err := b.m.Chain(); err == nil {
		t.Error("something was measured")
	}
}

// A graph that is dropped takes with it what was kept.
func TestDroppedGraphs(t *testing.T) {
	b := newFixture(t, mlp().model(), autoremat.Config{Limit: 1 << 30})
	x := b.normal(16, 20)
	if err := b.step(x); err != nil {
		t.Fatal(err)
	}
	mark, live := b.Mark(), device.Memory().Live
	y := b.m.Forward(b.ctx(), x)
	if device.Memory().Live == live {
		t.Error("nothing is kept")
	}
	b.Sum(y)
	b.Release(mark)
	if got := device.Memory().Live; got != live {
		t.Errorf("%d bytes more are live", got-live)
	}
}

// After the module is closed the device is as it was, and training is refused.
func TestClose(t *testing.T) {
	b := newFixture(t, mlp().model(), autoremat.Config{Limit: 1 << 30})
	device.SetLimit(1 << 32)
	defer device.SetLimit(0)
	x := b.normal(16, 20)
	if err := b.step(x); err != nil {
		t.Fatal(err)
	}
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

// TestCloseInAnyOrder: modules of one device may be closed in any order. The limit of one that was
// closed first once came back, for good, with the other's Close.
func TestCloseInAnyOrder(t *testing.T) {
	b := newFixture(t, mlp().model(), autoremat.Config{Limit: 1 << 30})
	if err := b.step(b.normal(16, 20)); err != nil {
		t.Fatal(err)
	}
	other := newFixture(t, mlp().model(), autoremat.Config{Limit: 1 << 29})
	if err := other.step(other.normal(16, 20)); err != nil {
		t.Fatal(err)
	}
	b.m.Close()
	if got := device.Memory().Limit; got != 1<<29 {
		t.Errorf("the limit is %d while one module is open", got)
	}
	other.m.Close()
	if got := device.Memory().Limit; got != 0 {
		t.Errorf("the limit is %d afterwards", got)
	}
}

// Without a limit it is what there is, and the report says where that is from.
func TestWithoutALimit(t *testing.T) {
	for _, account := range []int64{0, 1 << 31} {
		t.Run(fmt.Sprint(account), func(t *testing.T) {
			var source string
			var limit int64
			b := newFixture(t, mlp().model(), autoremat.Config{Report: func(r autoremat.Report) { source, limit = r.Source, r.Limit }})
			device.SetLimit(account)
			defer device.SetLimit(0)
			if err := b.step(b.normal(16, 20)); err != nil {
				t.Fatal(err)
			}
			want, from := account, "the limit of cpu:5"
			if account == 0 {
				want, from = limit, "what the machine and the cgroups have free"
			}
			if limit != want || limit < 1<<20 || !strings.Contains(source, from) {
				t.Errorf("the limit is %d, from %s", limit, source)
			}
			b.m.Close()
		})
	}
}

// TestMeasuringTakesMoreThanTheLimit: measuring may take more than the account's own limit, and
// more than the plan that is then found. This once failed as a layer that was out of memory. Now
// the module measures without that limit, and restores it afterwards.
func TestMeasuringTakesMoreThanTheLimit(t *testing.T) {
	b := newFixture(t, tower().model(), autoremat.Config{})
	defer device.SetLimit(0)
	x := b.normal(256, 32)
	own := device.Memory().Live + 100
	device.SetLimit(own)
	err := b.step(x)
	var short *planner.MemoryError
	if !errors.As(err, &short) || short.Stages[0].Limit != own || short.Least() <= own {
		t.Fatalf("with %d bytes: %v", own, err)
	}
	if got := device.Memory().Limit; got != own {
		t.Errorf("the limit is %d afterwards, was %d", got, own)
	}
	b.m.Close()
	device.SetLimit(short.Least())
	m, err := autoremat.New(b.model, autoremat.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	b.m = m
	if err := b.step(x); err != nil {
		t.Errorf("with the %d bytes that would do: %v", short.Least(), err)
	}
}

// TestInPlacePrologue: layers of the prologue leave the caller's input unchanged, even if they
// declare to overwrite it.
func TestInPlacePrologue(t *testing.T) {
	b := newFixture(t, nn.NewSequential(nn.NewReLUInPlace(), nn.NewTanh(), nn.NewLinear(20, 5)), autoremat.Config{Limit: 1 << 30})
	x := b.normal(16, 20)
	before := string(torch.Bytes(x))
	for range 2 {
		if err := b.step(x); err != nil {
			t.Fatal(err)
		}
	}
	if string(torch.Bytes(x)) != before {
		t.Error("the input was overwritten")
	}
}
