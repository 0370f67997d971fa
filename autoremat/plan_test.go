package autoremat_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"penstock.example/autoremat"
	"penstock.example/internal/disk"
	"penstock.example/nn"
	"penstock.example/planner"
	"penstock.example/remat"
	"penstock.example/torch"
)

// Plans go into files and come back for the same model and batch, and for no other.
func TestPlanFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "plan.json")
	b := newFixture(t, tower().model(), autoremat.Config{Limit: 1 << 30})
	x := b.normal(64, 32)
	measure := func() {
		t.Helper()
		if err := b.m.Measure(context.Background(), b.ctx(), autoremat.Sample{Input: []*torch.Tensor{x}}); err != nil {
			t.Fatal(err)
		}
	}
	for what, err := range map[string]error{"SavePlan": b.m.SavePlan(path), "LoadPlan": b.m.LoadPlan(path), "SetPlan": b.m.SetPlan(remat.Plan{Ops: remat.None(3)})} {
		if err == nil {
			t.Errorf("%s before anything was measured", what)
		}
	}
	measure()
	least := &planner.MemoryError{}
	if _, err := b.m.Solve(context.Background(), 1); !errors.As(err, &least) {
		t.Fatalf("a limit of one byte: %v", err)
	}
	limit := least.Least() + least.Least()/3
	p, err := b.m.SetLimit(context.Background(), limit)
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
	if got, err := b.m.Plan(); err != nil || remat.FormatOps(got.Ops) != remat.FormatOps(p.Ops) {
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
	if err := remat.CheckPlan(chain.Chain, p); err != nil {
		t.Error(err)
	}

	b.m.Close()
	other := newFixture(t, mlp().model(), autoremat.Config{Limit: 1 << 30})
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
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, "/dev/zero"} {
		if err := other.m.LoadPlan(path); !errors.Is(err, disk.ErrNotRegular) {
			t.Errorf("%s: error %v", path, err)
		}
	}
	if err := other.m.SetPlan(remat.Plan{Ops: remat.None(2)}); err == nil {
		t.Error("a plan of two layers is the plan of more")
	}
}

// A plan that was set is not run beyond the limit.
func TestPlansThatAreTooLarge(t *testing.T) {
	b := newFixture(t, tower().model(), autoremat.Config{Limit: 1 << 30})
	x := b.normal(256, 32)
	if err := b.step(x); err != nil {
		t.Fatal(err)
	}
	if err := b.step(x); err != nil {
		t.Fatal(err)
	}
	most := b.m.Predicted()
	if _, err := b.m.SetLimit(context.Background(), most/2); err != nil {
		t.Fatal(err)
	}
	chain, err := b.m.Chain()
	if err != nil {
		t.Fatal(err)
	}
	if err := b.m.SetPlan(remat.Plan{Ops: remat.None(len(chain.Layers))}); err != nil {
		t.Fatal(err)
	}
	var e *planner.MemoryError
	if err := b.step(x); !errors.As(err, &e) || e.Least() != most || e.Stages[0].Limit != most/2 || !strings.Contains(err.Error(), "the plan that was set") {
		t.Errorf("got %v, want a refusal that says %d", err, most)
	}
	if err := b.m.SetPlan(remat.Plan{Ops: remat.All(len(chain.Layers))}); err != nil {
		t.Fatal(err)
	}
	if err := b.step(x); err != nil {
		t.Error(err)
	}
}

func TestRefusals(t *testing.T) {
	unmatched := layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return x })
	unmatched.Pops("gone")
	for name, make := range map[string]func() (*autoremat.Module, error){
		"no model":  func() (*autoremat.Module, error) { return autoremat.New(nil, autoremat.Config{}) },
		"no layers": func() (*autoremat.Module, error) { return autoremat.New(nn.NewSequential(), autoremat.Config{}) },
		"half a skip": func() (*autoremat.Module, error) {
			return autoremat.New(nn.NewSequential(unmatched), autoremat.Config{})
		},
		"a negative limit": func() (*autoremat.Module, error) { return autoremat.New(mlp().model(), autoremat.Config{Limit: -1}) },
		"negative slots":   func() (*autoremat.Module, error) { return autoremat.New(mlp().model(), autoremat.Config{Slots: -1}) },
		"negative repeats": func() (*autoremat.Module, error) { return autoremat.New(mlp().model(), autoremat.Config{Repeats: -1}) },
		"slots told twice": func() (*autoremat.Module, error) {
			o := adam()
			defer o.Close()
			return autoremat.New(mlp().model(), autoremat.Config{Slots: 1, Optimizer: o})
		},
	} {
		if m, err := make(); err == nil || m != nil || !strings.HasPrefix(err.Error(), "autoremat: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	b := newFixture(t, mlp().model(), autoremat.Config{Limit: 1 << 30})
	if err := b.step(b.normal(16, 20)); err != nil {
		t.Fatal(err)
	}
	c := torch.NewCtx(torch.Options{Device: torch.CPU(6), Grad: true})
	defer c.Close()
	if _, err := b.m.Run(nn.NewCtx(c, nn.Config{Training: true}), c.Ones(torch.Float32, 16, 20)); err == nil || !strings.Contains(err.Error(), "trains on cpu:5") {
		t.Errorf("another device: %v", err)
	}
	unmade, err := autoremat.New(mlp().model(), autoremat.Config{Limit: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	defer unmade.Close()
	if _, err := unmade.Run(nn.NewCtx(c, nn.Config{Training: true}), c.Ones(torch.Float32, 16, 20)); err == nil || !strings.Contains(err.Error(), "nn.Materialise") {
		t.Errorf("parameters that do not exist: %v", err)
	}
	if err := b.m.Measure(context.Background(), b.ctx(), autoremat.Sample{Input: []*torch.Tensor{nil}}); err == nil {
		t.Error("an input that is nil was measured")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := b.m.Measure(ctx, b.ctx(), autoremat.Sample{Input: []*torch.Tensor{b.normal(8, 20)}}); !errors.Is(err, context.Canceled) {
		t.Errorf("after the context's end: %v", err)
	}
}
