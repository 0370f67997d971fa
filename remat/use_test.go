package remat_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"penstock/internal/torchtest"
	"penstock/nn"
	"penstock/remat"
	"penstock/remat/plan"
	"penstock/torch"
)

// bench is a module on a context, with its model's parameters.
type bench struct {
	*torch.Ctx
	model *nn.Sequential
	m     *remat.Module
}

func newBench(t *testing.T, model *nn.Sequential, config remat.Config) *bench {
	t.Helper()
	torchtest.Check(t)
	c := torch.NewCtx(torch.Options{Device: device, Threads: 1})
	nn.Materialise(c, nn.State(model), 3)
	config.Warmup, config.Repeats = 1, 1
	m, err := remat.New(model, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.Close()
		c.Close()
		nn.Free(model)
	})
	return &bench{c, model, m}
}

func (b *bench) normal(shape ...int64) *torch.Tensor {
	return b.Normal_(b.Empty(torch.Float32, shape...), 0, 1)
}

func (b *bench) ctx() *nn.Ctx {
	b.SetGrad(true)
	return nn.NewCtx(b.Ctx, nn.Config{Training: true, Seed: 1})
}

// step goes forward and back, with the sum of squares for a loss.
func (b *bench) step(x *torch.Tensor) error {
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
	var reports []remat.Report
	b := newBench(t, mlp().model(), remat.Config{Limit: 1 << 30, Report: func(r remat.Report) { reports = append(reports, r) }})
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

// Where there is nothing to go back through the module is the model: nothing is measured, and nothing is kept.
func TestEvaluationIsTheModel(t *testing.T) {
	b := newBench(t, mlp().model(), remat.Config{Limit: 1 << 30})
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
	b := newBench(t, mlp().model(), remat.Config{Limit: 1 << 30})
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
	b := newBench(t, mlp().model(), remat.Config{Limit: 1 << 30})
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
	if err := b.step(x); !errors.Is(err, remat.ErrClosed) {
		t.Errorf("training gives %v", err)
	}
}

// Without a limit it is what there is, and the report says where that is from.
func TestWithoutALimit(t *testing.T) {
	for _, account := range []int64{0, 1 << 31} {
		t.Run(fmt.Sprint(account), func(t *testing.T) {
			var source string
			var limit int64
			b := newBench(t, mlp().model(), remat.Config{Report: func(r remat.Report) { source, limit = r.Source, r.Limit }})
			device.SetLimit(account)
			defer device.SetLimit(0)
			if err := b.step(b.normal(16, 20)); err != nil {
				t.Fatal(err)
			}
			want, from := account, "the limit of cpu:5"
			if account == 0 {
				want, from = limit, "/proc/meminfo"
			}
			if limit != want || limit < 1<<20 || !strings.Contains(source, from) {
				t.Errorf("the limit is %d, from %s", limit, source)
			}
			b.m.Close()
		})
	}
}

// Plans go into files and come back for the same model and batch, and for no other.
func TestPlanFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "plan.json")
	b := newBench(t, tower().model(), remat.Config{Limit: 1 << 30})
	x := b.normal(64, 32)
	measure := func() {
		t.Helper()
		if err := b.m.Measure(context.Background(), b.ctx(), remat.Sample{Inputs: []*torch.Tensor{x}}); err != nil {
			t.Fatal(err)
		}
	}
	for what, err := range map[string]error{"SavePlan": b.m.SavePlan(path), "LoadPlan": b.m.LoadPlan(path), "SetPlan": b.m.SetPlan(plan.Plan{Ops: plan.None(3)})} {
		if err == nil {
			t.Errorf("%s before anything was measured", what)
		}
	}
	measure()
	least := &remat.LimitError{}
	if _, err := b.m.Solve(context.Background(), 1); !errors.As(err, &least) {
		t.Fatalf("a limit of one byte: %v", err)
	}
	limit := least.Least + least.Least/3
	p, err := b.m.Solve(context.Background(), limit)
	if err != nil || len(p.Ops) == 0 || device.Memory().Limit != limit {
		t.Fatalf("%v, %v; the limit is %d", p, err, device.Memory().Limit)
	}
	if err := b.m.SavePlan(path); err != nil {
		t.Fatal(err)
	}
	measure() // drops the plan
	if err := b.m.LoadPlan(path); err != nil {
		t.Fatal(err)
	}
	if got, err := b.m.Plan(); err != nil || plan.FormatOps(got.Ops) != plan.FormatOps(p.Ops) {
		t.Errorf("%v, %v", got, err)
	}
	if err := b.step(x); err != nil {
		t.Error(err)
	}
	chain, err := b.m.Chain()
	if err != nil {
		t.Fatal(err)
	}
	if p, err = b.m.Plan(); err != nil {
		t.Fatal(err)
	}
	if err := plan.CheckPlan(chain.Chain, p); err != nil {
		t.Error(err)
	}

	b.m.Close()
	other := newBench(t, mlp().model(), remat.Config{Limit: 1 << 30})
	if err := other.step(other.normal(16, 20)); err != nil {
		t.Fatal(err)
	}
	if err := other.m.LoadPlan(path); err == nil || !strings.Contains(err.Error(), "of another model or for other batches") {
		t.Errorf("another model: %v", err)
	}
	for name, text := range map[string]string{
		"no chain": `{"version":1,"feasible":true,"limit_bytes":0,"peak_bytes":1,"time_us":1,"lower_bound_us":1,"ops":[{"op":"loss"}]}`, "no plan": `{"version":1}`,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := other.m.LoadPlan(path); err == nil {
			t.Errorf("%s: loaded", name)
		}
	}
	if err := other.m.SetPlan(plan.Plan{Ops: plan.None(2)}); err == nil {
		t.Error("a plan of two layers is the plan of more")
	}
}

// A plan that was set is not run beyond the limit.
func TestPlansThatAreTooLarge(t *testing.T) {
	b := newBench(t, tower().model(), remat.Config{Limit: 1 << 30})
	x := b.normal(256, 32)
	if err := b.step(x); err != nil {
		t.Fatal(err)
	}
	if err := b.step(x); err != nil {
		t.Fatal(err)
	}
	most := b.m.Predicted()
	if _, err := b.m.Solve(context.Background(), most/2); err != nil {
		t.Fatal(err)
	}
	chain, err := b.m.Chain()
	if err != nil {
		t.Fatal(err)
	}
	if err := b.m.SetPlan(plan.Plan{Ops: plan.None(len(chain.Layers))}); err != nil {
		t.Fatal(err)
	}
	var e *remat.LimitError
	if err := b.step(x); !errors.As(err, &e) || e.Least != most || e.Limit != most/2 || !strings.Contains(err.Error(), "the plan that was set") {
		t.Errorf("got %v, want a refusal that says %d", err, most)
	}
	if err := b.m.SetPlan(plan.Plan{Ops: plan.All(len(chain.Layers))}); err != nil {
		t.Fatal(err)
	}
	if err := b.step(x); err != nil {
		t.Error(err)
	}
}

func TestRefusals(t *testing.T) {
	unmatched := layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return x })
	unmatched.Pops("gone")
	for name, make := range map[string]func() (*remat.Module, error){
		"no model":         func() (*remat.Module, error) { return remat.New(nil, remat.Config{}) },
		"no layers":        func() (*remat.Module, error) { return remat.New(nn.NewSequential(), remat.Config{}) },
		"half a skip":      func() (*remat.Module, error) { return remat.New(nn.NewSequential(unmatched), remat.Config{}) },
		"a negative limit": func() (*remat.Module, error) { return remat.New(mlp().model(), remat.Config{Limit: -1}) },
		"negative slots":   func() (*remat.Module, error) { return remat.New(mlp().model(), remat.Config{Slots: -1}) },
		"negative repeats": func() (*remat.Module, error) { return remat.New(mlp().model(), remat.Config{Repeats: -1}) },
		"slots told twice": func() (*remat.Module, error) {
			o := adam()
			defer o.Close()
			return remat.New(mlp().model(), remat.Config{Slots: 1, Optimizer: o})
		},
	} {
		if m, err := make(); err == nil || m != nil || !strings.HasPrefix(err.Error(), "remat: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	b := newBench(t, mlp().model(), remat.Config{Limit: 1 << 30})
	if err := b.step(b.normal(16, 20)); err != nil {
		t.Fatal(err)
	}
	c := torch.NewCtx(torch.Options{Device: torch.CPU(6), Grad: true})
	defer c.Close()
	if _, err := b.m.Run(nn.NewCtx(c, nn.Config{Training: true}), c.Ones(torch.Float32, 16, 20)); err == nil || !strings.Contains(err.Error(), "trains on cpu:5") {
		t.Errorf("another device: %v", err)
	}
	unmade, err := remat.New(mlp().model(), remat.Config{Limit: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	defer unmade.Close()
	if _, err := unmade.Run(nn.NewCtx(c, nn.Config{Training: true}), c.Ones(torch.Float32, 16, 20)); err == nil || !strings.Contains(err.Error(), "nn.Materialise") {
		t.Errorf("parameters that do not exist: %v", err)
	}
	if err := b.m.Measure(context.Background(), b.ctx(), remat.Sample{Inputs: []*torch.Tensor{nil}}); err == nil {
		t.Error("an input that is nil was measured")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := b.m.Measure(ctx, b.ctx(), remat.Sample{Inputs: []*torch.Tensor{b.normal(8, 20)}}); !errors.Is(err, context.Canceled) {
		t.Errorf("after the context's end: %v", err)
	}
}
