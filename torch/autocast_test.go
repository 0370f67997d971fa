package torch_test

import (
	"encoding/json"
	"math"
	"os"
	"strings"
	"testing"

	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/safetensors"
	"penstock.example/torch"
)

// What PyTorch computed under autocast is in testdata/autocast; scripts/fixtures/README.md
// says what each file holds.
const autocastFixtures = "testdata/autocast"

// autocastTolerance is a difference relative to the largest magnitude in the tensor: two units in
// the last of bfloat16's 8 bits. The fixtures come from the plainest kernels, whose sums round
// elsewhere.
const autocastTolerance = 1.0 / 64

// autocastOperators are the operators of the cases, on the arguments' names.
var autocastOperators = map[string]func(c *torch.Ctx, arg func(string) *torch.Tensor) *torch.Tensor{
	"linear": func(c *torch.Ctx, arg func(string) *torch.Tensor) *torch.Tensor {
		return c.Linear(arg("x"), arg("weight"), arg("bias"))
	},
	"matmul": func(c *torch.Ctx, arg func(string) *torch.Tensor) *torch.Tensor {
		return c.Matmul(arg("x"), arg("y"))
	},
	"conv2d": func(c *torch.Ctx, arg func(string) *torch.Tensor) *torch.Tensor {
		return c.Op("penstock::conv2d", arg("x"), arg("weight"), arg("bias"), []int64{1, 1}, []int64{1,
			1}, []int64{1, 1}, 1)
	},
	"batch_norm": func(c *torch.Ctx, arg func(string) *torch.Tensor) *torch.Tensor {
		return c.Op("aten::batch_norm", arg("x"), arg("weight"), arg("bias"), nil, nil, true, 0.1, 1e-5, true)
	},
	"layer_norm": func(c *torch.Ctx, arg func(string) *torch.Tensor) *torch.Tensor {
		return c.Op("aten::layer_norm", arg("x"), []int64{6}, arg("weight"), arg("bias"), 1e-5)
	},
	"embedding": func(c *torch.Ctx, arg func(string) *torch.Tensor) *torch.Tensor {
		return c.Op("aten::embedding", arg("weight"), arg("indices"), -1)
	},
	"gelu": func(c *torch.Ctx, arg func(string) *torch.Tensor) *torch.Tensor {
		return c.GELU(arg("x"), "none")
	},
	"softmax": func(c *torch.Ctx, arg func(string) *torch.Tensor) *torch.Tensor {
		return c.Op("aten::softmax.int", arg("x"), -1)
	},
	"cross_entropy": func(c *torch.Ctx, arg func(string) *torch.Tensor) *torch.Tensor {
		return c.Op("aten::cross_entropy_loss", arg("x"), arg("target"), nil, torch.ReduceMean)
	},
	"mse": func(c *torch.Ctx, arg func(string) *torch.Tensor) *torch.Tensor {
		return c.Op("aten::mse_loss", arg("x"), arg("target"), torch.ReduceMean)
	},
	"mlp": func(c *torch.Ctx, arg func(string) *torch.Tensor) *torch.Tensor {
		h := c.Linear(c.GELU(c.Linear(arg("x"), arg("weight1"), nil), "none"), arg("weight2"), nil)
		return c.Op("aten::cross_entropy_loss", h, arg("target"), nil, torch.ReduceMean)
	},
}

// Under autocast every operator gives PyTorch's types, and its numbers to bfloat16's accuracy, as
// do the gradients.
func TestAutocastGivesWhatPyTorchGives(t *testing.T) {
	text := must.Get(os.ReadFile(torchtest.Fixture(autocastFixtures, "cases.json")))(t)
	var cases []struct{ Name, Operator, File string }
	if err := json.Unmarshal(text, &cases); err != nil || len(cases) != 16 {
		t.Fatalf("%d cases, want 16 (%v)", len(cases), err)
	}
	for _, row := range cases {
		t.Run(row.Name, func(t *testing.T) {
			file := must.Get(safetensors.Open(torchtest.Fixture(autocastFixtures, row.File)))(t)
			defer func() { _ = file.Close() }() // it was only read
			c := torchtest.New(t, torch.Options{Grad: true, Autocast: torch.AutocastBFloat16})
			recorded := map[string]*torch.Tensor{}
			for _, s := range file.Tensors() {
				stored := must.Get(file.Read(s.Name))(t)
				dtype := map[safetensors.DType]torch.DType{safetensors.F32: torch.Float32,
					safetensors.BF16: torch.BFloat16, safetensors.I64: torch.Int64}[s.DType]
				recorded[s.Name] = torch.FromBytes(c, stored.Data, dtype, stored.Shape)
				if strings.HasPrefix(s.Name, "arg.") && dtype.IsFloat() {
					recorded[s.Name].SetRequiresGrad(true)
				}
			}
			compare := func(name string, got *torch.Tensor) {
				t.Helper()
				want := recorded[name]
				// for GPUs libtorch has other types for some
				if got.String() != want.String() && c.Device().Kind == torch.KindCPU {
					t.Errorf("%s: got %v, want %v", name, got, want)
					return
				}
				if difference, largest := differ(c, got, want); difference > autocastTolerance*largest {
					t.Errorf("%s: differs by %.3g where the largest is %.3g", name, difference, largest)
				}
			}
			y := autocastOperators[row.Operator](c,
				func(name string) *torch.Tensor { return recorded["arg."+name] })
			compare("output", y)
			grad := recorded["grad_output"]
			if grad != nil {
				grad = c.To(grad, y.DType())
			}
			c.Backward([]*torch.Tensor{y}, []*torch.Tensor{grad}, false)
			compared := 0
			for name, arg := range recorded {
				if name, ok := strings.CutPrefix(name, "arg."); ok && arg.DType().IsFloat() {
					compare("grad."+name, c.GradOf(arg))
					arg.SetGradOf(nil)
					compared++
				}
			}
			if compared == 0 {
				t.Error("no gradient was compared")
			}
		})
	}
}

// differ is the largest difference of two tensors, and the largest magnitude in the second.
func differ(c *torch.Ctx, got, want *torch.Tensor) (difference, largest float64) {
	a, b := torch.Values[float64](c.To(c.Detach(got), torch.Float64)),
		torch.Values[float64](c.To(c.Detach(want), torch.Float64))
	for i := range b {
		d := math.Abs(a[i] - b[i])
		if d != d {
			d = math.Inf(1)
		}
		difference, largest = max(difference, d), max(largest, math.Abs(b[i]))
	}
	return difference, largest
}

// penstock::linear adds to the weight's gradient where it lies, in float32, the bfloat16 product of
// each micro-batch, as autograd does for aten::linear.
func TestAutocastLinearAccumulates(t *testing.T) {
	c := torchtest.New(t, torch.Options{Grad: true, Autocast: torch.AutocastBFloat16})
	w, bias := torchtest.Leaf(t, c, 5, 7), torchtest.Leaf(t, c, 5)
	gradients := func(linear func(x, weight, bias *torch.Tensor) *torch.Tensor) (out []*torch.Tensor) {
		c.SetSeed(11)
		for range 3 {
			x := c.Normal_(c.Empty(torch.Float32, 4, 7), 0, 1)
			y := linear(x, w, bias)
			c.Backward([]*torch.Tensor{y}, []*torch.Tensor{c.Normal_(c.Op("aten::empty_like", y), 0, 1)},
				false)
		}
		for _, p := range []*torch.Tensor{w, bias} {
			out = append(out, c.GradOf(p))
			p.SetGradOf(nil)
		}
		return out
	}
	got, want := gradients(c.Linear), gradients(c.AtenLinear)
	for i := range want {
		if got[i].String() != want[i].String() {
			t.Errorf("got %v, want %v", got[i], want[i])
		}
		if difference, largest := differ(c, got[i], want[i]); difference > autocastTolerance*largest {
			t.Errorf("gradient %d differs by %.3g where the largest is %.3g", i, difference, largest)
		}
	}
}

func TestAutocastBelongsToTheContext(t *testing.T) {
	c := torchtest.New(t, torch.Options{Grad: true})
	x, w := torchtest.Leaf(t, c, 4, 4), torchtest.Leaf(t, c, 4, 4)
	dtype := func() torch.DType { return c.Linear(x, w, nil).DType() }
	if c.Autocast() != torch.AutocastOff || dtype() != torch.Float32 {
		t.Errorf("by default: %v, %v", c.Autocast(), dtype())
	}
	if was := c.SetAutocast(torch.AutocastBFloat16); was != torch.AutocastOff ||
		c.Autocast() != torch.AutocastBFloat16 || dtype() != torch.BFloat16 {
		t.Errorf("on: was %v, is %v, %v", was, c.Autocast(), dtype())
	}
	other := torch.NewCtx(torch.Options{Device: c.Device()})
	if y := other.Op("aten::mm", x, w); y.DType() != torch.Float32 {
		t.Errorf("another context on the same thread gives %v", y)
	}
	other.Close()
	if err := torch.Try(func() { c.Op("aten::mm", x, torchtest.Leaf(t, c, 3, 3)) }); err == nil {
		t.Error("shapes that do not fit went through")
	}
	if was := c.SetAutocast(torch.AutocastOff); was != torch.AutocastBFloat16 || dtype() != torch.Float32 {
		t.Errorf("off, after a failure under autocast: was %v, %v", was, dtype())
	}
}

// Files from when bfloat16 was the only type are read, and written alike.
func TestAutocastAsText(t *testing.T) {
	for want, text := range map[torch.Autocast]string{torch.AutocastOff: `false`,
		torch.AutocastBFloat16: `true`, torch.AutocastFloat16: `"float16"`} {
		got, err := json.Marshal(want)
		if err != nil || string(got) != text {
			t.Errorf("%v as JSON is %s, %v", want, got, err)
		}
		var a torch.Autocast
		if err := json.Unmarshal([]byte(text), &a); err != nil || a != want {
			t.Errorf("%s is %v, %v", text, a, err)
		}
		if a, err := torch.ParseAutocast(want.String()); err != nil || a != want {
			t.Errorf("%v is read as %v, %v", want, a, err)
		}
	}
	var a torch.Autocast
	for _, text := range []string{`"half"`, `3`, `null1`} {
		if err := json.Unmarshal([]byte(text), &a); err == nil {
			t.Errorf("%s is read as %v", text, a)
		}
	}
}
