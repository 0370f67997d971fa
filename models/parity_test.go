package models_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/safetensors"
	"penstock.example/torch"
)

// TestParityWithPyTorch: small models give the outputs, gradients and running statistics that the
// same ones written in PyTorch do; scripts/fixtures/README.md says what the files hold. PENSTOCK_PARITY
// is a folder of what another version of PyTorch computes.
func TestParityWithPyTorch(t *testing.T) {
	parity := cmp.Or(os.Getenv("PENSTOCK_PARITY"), "testdata/parity")
	text := must.Get(os.ReadFile(filepath.Join(parity, "cases.json")))(t)
	var list []struct {
		Name, Model, File string
		Args              map[string]int
	}
	if err := json.Unmarshal(text, &list); err != nil || len(list) != 5 {
		t.Fatalf("%d cases, want 5; %v", len(list), err)
	}
	for _, p := range list {
		t.Run(p.Name, func(t *testing.T) {
			c := torchtest.New(t, torch.Options{Grad: true})
			f := openFixture(t, c, filepath.Join(parity, p.File))
			// The norms of a small AmoebaNet divide by deviations of six values, one after the
			// other: rounding grows. Of the U-Net PyTorch's own float32 differs by 1.4e-5.
			f.tolerance = map[string]float64{"unet": 2e-5, "resnet1001": 1e-5, "gpt2": 1e-5,
				"amoebanetd": 2e-4}[p.Model]
			o := models.Options{NoDropout: p.Model == "unet" || p.Model == "gpt2"}
			for name, value := range p.Args {
				must.Do(t, models.Set(p.Model, &o, []string{fmt.Sprintf("%s=%d", name, value)}))
			}
			s := build(t, p.Model, o)
			t.Cleanup(func() { nn.Free(s) })
			for _, param := range nn.State(s) {
				kind := "param."
				if param.IsBuffer() {
					kind = "buffer."
				}
				param.SetTensor(c.Keep(f.tensor(kind + param.Name)))
			}
			x := f.tensor("input")
			if x.DType().IsFloat() {
				x.SetRequiresGrad(true)
			}
			y := s.Forward(training(c), x)
			f.compare("output", y)
			c.Backward([]*torch.Tensor{y}, []*torch.Tensor{f.tensor("grad_output")}, false)
			if x.DType().IsFloat() {
				f.compare("grad.input", c.GradOf(x))
				x.SetGradOf(nil)
			}
			for _, param := range nn.Params(s) {
				f.compare("grad."+param.Name, c.GradOf(param.Tensor()))
			}
			for _, buffer := range nn.Buffers(s) {
				f.compare("after."+buffer.Name, buffer.Tensor())
			}
			for name := range f.unused {
				t.Errorf("%s was not compared", name)
			}
		})
	}
}

// fixture is one case's tensors, and which were not looked at yet.
type fixture struct {
	t         *testing.T
	c         *torch.Ctx
	file      *safetensors.File
	unused    map[string]bool
	tolerance float64
}

func openFixture(t *testing.T, c *torch.Ctx, path string) *fixture {
	file := must.Get(safetensors.Open(path))(t)
	t.Cleanup(func() { _ = file.Close() }) // it was only read
	f := &fixture{t: t, c: c, file: file, unused: map[string]bool{}}
	for _, s := range file.Tensors() {
		f.unused[s.Name] = true
	}
	return f
}

func (f *fixture) tensor(name string) *torch.Tensor {
	f.t.Helper()
	delete(f.unused, name)
	s, err := f.file.Read(name)
	if err != nil {
		f.t.Fatal(err)
	}
	dtype := map[safetensors.DType]torch.DType{safetensors.F32: torch.Float32,
		safetensors.I64: torch.Int64}[s.DType]
	return torch.FromBytes(f.c, s.Data, dtype, s.Shape)
}

// compare takes differences relative to the largest magnitude of the tensor, or to floor where
// gradients cancel: of a weight in front of a norm over one channel nothing is left but rounding.
func (f *fixture) compare(name string, got *torch.Tensor) {
	f.t.Helper()
	const floor = 0.25
	want := f.tensor(name)
	if got == nil || got.String() != want.String() {
		f.t.Errorf("%s: got %v, want %v", name, got, want)
		return
	}
	a, b := f.values(got), f.values(want)
	var difference, largest float64
	for i := range b {
		difference, largest = max(difference, math.Abs(a[i]-b[i])), max(largest, math.Abs(b[i]))
	}
	if !(difference <= f.tolerance*max(floor, largest)) {
		f.t.Errorf("%s: differs by %.3g where the largest is %.3g", name, difference, largest)
	}
}

func (f *fixture) values(t *torch.Tensor) []float64 {
	return torch.Values[float64](f.c.To(f.c.Detach(t), torch.Float64))
}

// With auxiliary classifiers a network gives their logits as well, in training; in evaluation it
// computes what it does without them.
func TestAuxiliaryClassifiersSpeakInTraining(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	o := models.Options{Classes: 5, NoDropout: true}
	plain := build(t, "googlenet", o)
	materialise(t, c, plain)
	o.Aux = true
	aux := build(t, "googlenet", o)
	materialise(t, c, aux)
	x, want := input(t, c, "googlenet", o)

	ys := aux.ForwardTuple(nn.NewCtx(c, nn.Config{}), []*torch.Tensor{x})
	if len(ys) != 1 {
		t.Fatalf("%d tensors in evaluation, want 1", len(ys))
	}
	if y := plain.Forward(nn.NewCtx(c, nn.Config{}), x); !bytes.Equal(torch.Bytes(ys[0]), torch.Bytes(y)) {
		t.Error("in evaluation the output is not that of the network without auxiliary classifiers")
	}
	ys = aux.ForwardTuple(training(c), []*torch.Tensor{x})
	if len(ys) != 3 {
		t.Fatalf("%d tensors in training, want 3", len(ys))
	}
	for _, y := range ys {
		if !slices.Equal(y.Shape(), want) {
			t.Errorf("got %v, want %v", y, want)
		}
	}
}

func TestAuxiliaryLoss(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	n := nn.NewCtx(c, nn.Config{})
	plain := nn.MSE(nn.LossConfig{Sum: true})
	loss := models.NewAuxiliaryLoss(plain, 0.3)
	if loss.Reduction() != torch.ReduceSum {
		t.Errorf("the reduction is %v, that of the loss is a sum", loss.Reduction())
	}
	target := torch.From(c, []float32{0, 0})
	ys := []*torch.Tensor{torch.From(c, []float32{1, 2}), torch.From(c, []float32{3, 0}),
		torch.From(c, []float32{0, 1})}
	for _, row := range []struct {
		outputs int
		want    float64
	}{{1, 5}, {2, 5 + 0.3*9}, {3, 5 + 0.3*9 + 0.3*1}} {
		got := float64(torch.Item[float32](nn.RunLoss(n, loss, ys[:row.outputs], []*torch.Tensor{target})))
		if math.Abs(got-row.want) > 1e-5 {
			t.Errorf("%d outputs: got %v, want %v", row.outputs, got, row.want)
		}
	}
}
