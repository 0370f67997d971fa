package pipe_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/safetensors"
	"penstock.example/torch"
)

// A model that was trained at one balance, written to a file, read into a model at another balance
// or without a pipe and trained on is, bit for bit, the one that was never interrupted. The file
// does not tell at which balance it was written.
func TestStateFilesDoNotDependOnTheBalance(t *testing.T) {
	torchtest.Check(t)
	dir := t.TempDir()
	loss := squares{}
	batch := func(c *torch.Ctx, step int) pipe.Batch {
		return pipe.Batch{Input: pipe.Rows(normal(7, 4)(c, step)), Target: pipe.Rows(normal(7, 4)(c, step+50)), Step: int64(step)}
	}
	train := func(model *nn.Sequential, balance []int, from, to int) {
		t.Helper()
		p, err := pipe.New(model, pipe.Config{Balance: balance, Chunks: 3, Seed: 8})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		c := torch.NewCtx(torch.Options{Threads: 1})
		defer c.Close()
		for step := from; step < to; step++ {
			if _, err := p.Step(context.Background(), batch(c, step), loss); err != nil {
				t.Fatal(err)
			}
			if err := p.OnStages(context.Background(), func(stage int, c *torch.Ctx) error {
				descend(c, p.Stages()[stage].Params())
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			nn.ZeroGrads(model)
		}
	}
	whole := everything()
	defer nn.Free(whole)
	train(whole, []int{5}, 0, 4)
	want := snapshot(whole, nil, gradient)

	var file []byte
	all := cuts(5, 4)
	for i, balance := range all {
		model := everything()
		train(model, balance, 0, 2)
		path := filepath.Join(dir, "model.safetensors")
		if err := safetensors.WriteFile(path, stateOf(model), nil); err != nil {
			t.Fatal(err)
		}
		written, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if file == nil {
			file = written
		} else if !bytes.Equal(file, written) {
			t.Errorf("balance %v writes another file than %v", balance, all[0])
		}
		nn.Free(model)

		other := all[(i*5+3)%len(all)] // any other one
		read := everything()
		load(t, read, path)
		train(read, other, 2, 4)
		if d := want.differs(snapshot(read, nil, gradient)); d != "" {
			t.Errorf("from balance %v to %v: %s differs from the run that was not interrupted", balance, other, d)
		}
		nn.Free(read)
	}

	// Into a pipe that runs already, and into a model without one.
	path := filepath.Join(dir, "model.safetensors")
	running := everything()
	p := started(t, running, pipe.Config{Balance: []int{1, 1, 3}, Seed: 99, Chunks: 3})
	overwrite(t, running, path)
	plain := everything()
	defer nn.Free(plain)
	load(t, plain, path)
	c := torch.NewCtx(torch.Options{Threads: 1})
	defer c.Close()
	x := normal(6, 4)(c, 0)
	y, err := eval(p, context.Background(), x)
	if err != nil {
		t.Fatal(err)
	}
	defer y.Free()
	if !near(torch.Values[float32](y), torch.Values[float32](plain.Forward(nn.NewCtx(c, nn.Config{}), x))) {
		t.Error("a model that was read into a running pipe gives other outputs than one without a pipe")
	}
}

func stateOf(model nn.Module) (out []safetensors.Tensor) {
	for _, s := range nn.State(model) {
		d := safetensors.F32
		if s.DType() == torch.Int64 {
			d = safetensors.I64
		}
		out = append(out, safetensors.Tensor{Name: s.Name, DType: d, Shape: s.Shape(), Data: torch.Bytes(s.Tensor())})
	}
	return out
}

// load makes a model's parameters of a file.
func load(t *testing.T, model nn.Module, path string) {
	t.Helper()
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	nn.Materialise(c, nn.State(model), 0)
	overwrite(t, model, path)
}

func overwrite(t *testing.T, model nn.Module, path string) {
	t.Helper()
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, s := range nn.State(model) {
		got, err := f.Read(s.Name)
		if err != nil {
			t.Fatal(err)
		}
		if err := torch.SetBytes(s.Tensor(), got.Data); err != nil {
			t.Fatal(err)
		}
	}
}
