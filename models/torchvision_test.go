package models_test

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/torch"
)

const torchvision = "testdata/torchvision" // scripts/fixtures/README.md says what the files hold

// Every entry of torchvision's state_dicts is here, by the same name and of the same shape, and
// nothing else: files of weights fit.
func TestStatesAreTorchvisions(t *testing.T) {
	states := torchvisionStates(t)
	// ten residual networks, eight VGGs, four DenseNets, four Vision Transformers, and Inception v3 and
	// GoogLeNet twice
	if want := 30; len(states) != want {
		t.Fatalf("%d models in the file, want %d", len(states), want)
	}
	for title, want := range states {
		name, settings, _ := strings.Cut(title, " ")
		var o models.Options
		if settings != "" {
			must.Do(t, models.Set(name, &o, []string{settings}))
		}
		var got []string
		for _, p := range nn.State(build(t, name, o)) {
			line := p.Name
			for _, n := range p.Shape() {
				line += fmt.Sprint(" ", n)
			}
			got = append(got, line)
		}
		slices.Sort(got)
		slices.Sort(want) // Python orders names, this lines
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s, - torchvision's, + ours:\n%s", title, diff)
		}
	}
}

// torchvisionStates maps a model, with its options, to lines of name and shape.
func torchvisionStates(t *testing.T) map[string][]string {
	t.Helper()
	f := must.Get(os.Open(filepath.Join(torchvision, "states.txt.gz")))(t)
	defer func() { _ = f.Close() }() // it was only read
	r := must.Get(gzip.NewReader(f))(t)
	states := map[string][]string{}
	title := ""
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if name, ok := strings.CutSuffix(lines.Text(), ":"); ok {
			title = name
			continue
		}
		states[title] = append(states[title], lines.Text())
	}
	must.Do(t, lines.Err())
	return states
}

// One of each family gives the outputs, gradients and running statistics that torchvision's does.
// Both compute in float64, where rounding does not hide a mistake: in float32 the gradients of a
// network of 50 norms agree to two digits.
func TestParityWithTorchvision(t *testing.T) {
	text := must.Get(os.ReadFile(filepath.Join(torchvision, "cases.json")))(t)
	var list []struct {
		Name, Model, File string
		Args              map[string]int
		Batch, Size       int64
	}
	if err := json.Unmarshal(text, &list); err != nil || len(list) == 0 {
		t.Fatalf("%d cases; %v", len(list), err)
	}
	for _, p := range list {
		t.Run(p.Name, func(t *testing.T) {
			if p.Size > 100 || p.Name == "googlenet" { // googlenet_aux contains it
				full(t)
			}
			c := torchtest.New(t, torch.Options{Grad: true, Threads: 2})
			f := openFixture(t, c, filepath.Join(torchvision, p.File))
			f.tolerance = 1e-6
			o := models.Options{NoDropout: hasDropout(t, p.Model)}
			for name, value := range p.Args {
				must.Do(t, models.Set(p.Model, &o, []string{fmt.Sprintf("%s=%d", name, value)}))
			}
			s := build(t, p.Model, o)
			t.Cleanup(func() { nn.Free(s) })
			fill(c, s)
			nn.Convert(c, nn.State(s), torch.Float64)
			x := torch.From(c, formula("input", p.Batch*3*p.Size*p.Size), p.Batch, 3, p.Size,
				p.Size).SetRequiresGrad(true)
			outputs := func(n *nn.Ctx) *torch.Tensor {
				return c.Cat(s.ForwardTuple(n, []*torch.Tensor{x}), 0)
			}
			mark := c.Mark()
			c.NoGrad(func() { f.compare("eval", c.To(outputs(nn.NewCtx(c, nn.Config{})), torch.Float32)) })
			c.Release(mark)

			y := outputs(training(c))
			f.compare("train", c.To(c.Detach(y), torch.Float32))
			c.Backward([]*torch.Tensor{y},
				[]*torch.Tensor{torch.From(c, formula("grad_output", y.Numel()), y.Shape()...)}, false)
			grads := map[string]*torch.Tensor{"input": c.GradOf(x)}
			x.SetGradOf(nil)
			for _, param := range nn.Params(s) {
				grads[param.Name] = c.GradOf(param.Tensor())
			}
			f.compareGists("grads", grads)
			after := map[string]*torch.Tensor{}
			for _, b := range nn.Buffers(s) {
				if len(b.Shape()) > 0 {
					after[b.Name] = b.Tensor()
				}
			}
			f.compareGists("after", after)
			for name := range f.unused {
				t.Errorf("%s was not compared", name)
			}
		})
	}
}

func hasDropout(t *testing.T, model string) bool {
	settings := must.Get(models.Settings(model, models.Options{}))(t)
	return slices.ContainsFunc(settings, func(s models.Setting) bool { return s.Name == "dropout" })
}

// formula is scripts/fixtures/zoo.py's: values in [-1, 1) that depend on the name and the position.
func formula(name string, count int64) []float64 {
	values := make([]float64, count)
	hash := crc32.ChecksumIEEE([]byte(name))
	for i := range values {
		x := hash + uint32(i)*2654435761
		for range 2 {
			x = (x ^ x>>16) * 0x45D9F3B
		}
		values[i] = float64(x^x>>16)/(1<<31) - 1
	}
	return values
}

// fill gives the model the values that zoo.py does.
func fill(c *torch.Ctx, s *nn.Sequential) {
	for _, p := range nn.State(s) {
		if strings.HasSuffix(p.Name, "num_batches_tracked") {
			p.SetTensor(c.Keep(c.AddInt_(c.Zeros(torch.Int64), 3)))
			continue
		}
		values := formula(p.Name, p.Numel())
		scale, shift := 0.25, 0.0
		switch {
		case len(p.Shape()) > 1:
			scale = math.Sqrt(6 / float64(p.Numel()/p.Shape()[0]))
		case strings.HasSuffix(p.Name, "weight"), strings.HasSuffix(p.Name, "running_var"):
			scale, shift = 0.5, 1
		}
		narrow := make([]float32, len(values))
		for i, v := range values {
			narrow[i] = float32(shift + float64(v*scale))
		}
		p.SetTensor(c.Keep(torch.From(c, narrow, p.Shape()...)))
	}
}

// compareGists compares what zoo.py says of each tensor: its product with the formula, relative to
// its norm, and its norm.
func (f *fixture) compareGists(kind string, tensors map[string]*torch.Tensor) {
	f.t.Helper()
	want := f.values(f.tensor(kind))
	var names []string
	for name := range tensors {
		names = append(names, name)
	}
	slices.Sort(names)
	if len(want) != 2*len(names) {
		f.t.Fatalf("%s: %d tensors, want %d", kind, len(names), len(want)/2)
	}
	for i, name := range names {
		t := tensors[name]
		if t == nil {
			f.t.Errorf("%s: %s has none", kind, name)
			continue
		}
		var product, square float64
		values := formula("gist "+name, t.Numel())
		for k, v := range torch.Values[float64](f.c.Op("aten::contiguous", t)) {
			product += float64(v) * values[k]
			square += float64(v) * float64(v)
		}
		norm, limit := math.Sqrt(square), f.tolerance*max(want[2*i+1], 1e-3)
		if !(math.Abs(product-want[2*i]) <= limit && math.Abs(norm-want[2*i+1]) <= limit) {
			f.t.Errorf("%s of %s: product %v and norm %v, want %v and %v", kind, name, product, norm,
				want[2*i], want[2*i+1])
		}
	}
}
