package nn_test

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/safetensors"
	"penstock.example/torch"
)

// What PyTorch computed is in testdata/parity; scripts/fixtures/README.md says what each file
// holds.
const parity = "testdata/parity"

// tolerance of a difference, relative to the largest magnitude in the tensor. Tensors below floor
// are sums that cancel: their digits are rounding.
const (
	tolerance = 1e-5
	floor     = 1e-2
)

// cases is how many cases.json has; a file cut short must not pass.
const cases = 205

type parityCase struct {
	Name, Layer, File string
	Args              json.RawMessage
	Train             bool
}

func TestParityWithPyTorch(t *testing.T) {
	var list []parityCase
	readJSON(t, "cases.json", &list)
	if len(list) != cases {
		t.Errorf("%d cases, want %d", len(list), cases)
	}
	for _, p := range list {
		t.Run(p.Name, func(t *testing.T) {
			c := nn.NewCtx(torchtest.New(t, torch.Options{Grad: true}), nn.Config{Training: p.Train})
			f := openFixture(t, p.File)
			if loss := buildLoss(t, p, f); loss != nil {
				checkLoss(t, c, f, loss)
				return
			}
			checkLayer(t, c, f, buildLayer(t, p.Layer, p.Args))
		})
	}
}

func checkLayer(t *testing.T, c *nn.Ctx, f *fixture, layer nn.Layer) {
	t.Cleanup(func() { nn.Free(layer) })
	f.load(c, layer)
	x := f.tensor(c, "input")
	if x.DType().IsFloat() {
		x.SetRequiresGrad(true)
	}
	in := x
	if l, ok := layer.(nn.InPlace); ok && l.OverwritesInput() {
		in = c.Clone(x)
	}
	y := layer.Forward(c, in)
	f.compare(c, "output", y)
	c.Backward([]*torch.Tensor{y}, []*torch.Tensor{f.tensor(c, "grad_output")}, false)
	f.compareGrad(c, "grad.input", x)
	x.SetGradOf(nil)
	for _, p := range nn.Params(layer) {
		f.compareGrad(c, "grad."+p.Name, p.Tensor())
	}
	for _, b := range nn.Buffers(layer) {
		f.compare(c, "after."+b.Name, b.Tensor())
	}
	f.allUsed()
}

func checkLoss(t *testing.T, c *nn.Ctx, f *fixture, loss nn.Loss) {
	x := f.tensor(c, "input").SetRequiresGrad(true)
	y := loss.Forward(c, x, f.tensor(c, "target"))
	f.compare(c, "output", y)
	c.Backward([]*torch.Tensor{y}, []*torch.Tensor{nil}, false)
	f.compareGrad(c, "grad.input", x)
	x.SetGradOf(nil)
	f.allUsed()
}

// fixture is one case's file and which of its tensors were looked at.
type fixture struct {
	t    *testing.T
	file *safetensors.File
	used map[string]bool
}

func openFixture(t *testing.T, name string) *fixture {
	file := must.Get(safetensors.Open(torchtest.Fixture(parity, name)))(t)
	t.Cleanup(func() { _ = file.Close() }) // it was only read
	return &fixture{t, file, map[string]bool{}}
}

func (f *fixture) has(name string) bool {
	return slices.ContainsFunc(f.file.Tensors(), func(s safetensors.Tensor) bool { return s.Name == name })
}

func (f *fixture) tensor(c *nn.Ctx, name string) *torch.Tensor {
	f.t.Helper()
	f.used[name] = true
	s, err := f.file.Read(name)
	if err != nil {
		f.t.Fatal(err)
	}
	dtype := map[safetensors.DType]torch.DType{safetensors.F32: torch.Float32, safetensors.I64: torch.Int64}[s.DType]
	return torch.FromBytes(c.Ctx, s.Data, dtype, s.Shape)
}

// load gives the layer the recorded values. Every parameter and buffer of either side must be on
// the other.
func (f *fixture) load(c *nn.Ctx, layer nn.Layer) {
	for _, p := range nn.State(layer) {
		kind := "param."
		if p.IsBuffer() {
			kind = "buffer."
		}
		p.SetTensor(c.Keep(f.tensor(c, kind+p.Name)))
	}
}

func (f *fixture) compareGrad(c *nn.Ctx, name string, leaf *torch.Tensor) {
	f.t.Helper()
	grad := c.GradOf(leaf)
	if (grad != nil) != f.has(name) {
		f.t.Errorf("%s: ours exists: %v, PyTorch's: %v", name, grad != nil, f.has(name))
		return
	}
	if grad != nil {
		f.compare(c, name, grad)
	}
}

func (f *fixture) compare(c *nn.Ctx, name string, got *torch.Tensor) {
	f.t.Helper()
	want := f.tensor(c, name)
	if got.String() != want.String() {
		f.t.Errorf("%s: got %v, want %v", name, got, want)
		return
	}
	difference, largest := distance(values(c, got), values(c, want))
	if difference > tolerance*max(floor, largest) {
		f.t.Errorf("%s: differs by %.3g where the largest is %.3g", name, difference, largest)
	}
}

// allUsed fails when the file holds a result that nothing was compared with.
func (f *fixture) allUsed() {
	f.t.Helper()
	for _, s := range f.file.Tensors() {
		if !f.used[s.Name] {
			f.t.Errorf("%s was not compared", s.Name)
		}
	}
}

func values(c *nn.Ctx, t *torch.Tensor) []float64 {
	return torch.Values[float64](c.To(c.Detach(t), torch.Float64))
}

// distance is the largest difference of two tensors, and the largest magnitude in the second.
// Differences of NaN and infinity are infinite unless both are the same.
func distance(got, want []float64) (difference, largest float64) {
	for i := range want {
		d := math.Abs(got[i] - want[i])
		switch {
		case got[i] == want[i] || got[i] != got[i] && want[i] != want[i]:
			d = 0
		case d != d:
			d = math.Inf(1)
		}
		difference, largest = max(difference, d), max(largest, math.Abs(want[i]))
	}
	return difference, largest
}

func readJSON(t *testing.T, name string, into any) {
	t.Helper()
	text := must.Get(os.ReadFile(torchtest.Fixture(parity, name)))(t)
	decodeStrictly(t, string(text), into)
}

// decodeStrictly refuses fields that nothing reads: an argument of a case that a test ignores would
// be tested at its default.
func decodeStrictly(t *testing.T, text string, into any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		t.Fatalf("%s: %v", text[:min(len(text), 200)], err)
	}
}

// vector reads a tensor of weights, nil when the case has none.
func (f *fixture) vector(has bool, name string) []float32 {
	if !has {
		return nil
	}
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	return torch.Values[float32](f.tensor(nn.NewCtx(c, nn.Config{}), name))
}
