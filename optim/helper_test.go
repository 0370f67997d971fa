package optim_test

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"

	"penstock.example/internal/gradnorm"
	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/safetensors"
	"penstock.example/torch"
)

// parity is where PyTorch's results lie.
const parity = "testdata/parity"

func readCases[T any](t *testing.T, file string) []T {
	t.Helper()
	data := must.Get(os.ReadFile(torchtest.Fixture(parity, file)))(t)
	var out []T
	must.Do(t, json.Unmarshal(data, &out))
	if len(out) == 0 {
		t.Fatalf("%s has no cases", file)
	}
	return out
}

// fixture opens a file of tensors and returns a reader that puts one of them into c.
func fixture(t *testing.T, c *torch.Ctx, file string) func(name string) *torch.Tensor {
	t.Helper()
	f := must.Get(safetensors.Open(torchtest.Fixture(parity, file)))(t)
	t.Cleanup(func() { _ = f.Close() })
	return func(name string) *torch.Tensor {
		t.Helper()
		v := must.Get(f.Read(name))(t)
		return torch.FromBytes(c, v.Data, torch.Float32, v.Shape)
	}
}

// module is nothing but parameters.
type module struct{ nn.Base }

// shapes of the model that most tests update. One is large enough for libtorch to use several
// threads, and is no multiple of a vector.
var shapes = map[string][]int64{"a.weight": {257, 131}, "a.bias": {131}, "b.weight": {3, 5, 7},
	"b.bias": {}, "c.weight": {100_003}}

// order is the order of declaration, which is not the order of the names.
var order = []string{"b.weight", "c.weight", "a.bias", "a.weight", "b.bias"}

// elements is how many the model has.
const elements = 257*131 + 131 + 3*5*7 + 1 + 100_003

// newModel declares the parameters of shapes and allocates parameter i on devices[i%len(devices)].
// Its values depend on nothing.
func newModel(t *testing.T, devices ...torch.Device) []nn.NamedParam {
	t.Helper()
	m := &module{}
	for _, name := range order {
		m.Param(name, nn.Normal(1), shapes[name]...)
	}
	params := nn.Params(m)
	for i, p := range params {
		c := torch.NewCtx(torch.Options{Device: devices[i%len(devices)]})
		nn.Materialise(c, []nn.NamedParam{p}, 1)
		c.Close()
	}
	t.Cleanup(func() { nn.Free(m) })
	return params
}

// setGrads gives every parameter the gradient of a step: normal numbers that depend on the step and
// the parameter's name alone. Those in without get none.
func setGrads(c *torch.Ctx, params []nn.NamedParam, step int, without ...string) {
	for _, p := range params {
		p.Tensor().SetGradOf(nil)
		if slices.Contains(without, p.Name) {
			continue
		}
		mark := c.Mark()
		c.SetSeed(torch.Mix(uint64(step), uint64(len(p.Name))<<32|uint64(p.Numel())))
		g := c.Empty(torch.Float32, p.Shape()...)
		c.Normal_(g, 0, 1)
		p.Tensor().SetGradOf(g)
		c.Release(mark)
	}
}

// rules are all optimizers, with every term of every formula switched on by some row. slots is the
// number of tensors kept for each parameter.
var rules = []struct {
	title, name string
	config      optim.Config
	slots       int64
}{
	{"sgd", "sgd", optim.Config{LR: 0.1}, 0},
	{"sgd decay", "sgd", optim.Config{LR: 0.1, WeightDecay: 0.01}, 0},
	{"sgd momentum", "sgd", optim.Config{LR: 0.1, Momentum: 0.9}, 1},
	{"sgd dampening", "sgd", optim.Config{LR: 0.1, Momentum: 0.9, Dampening: 0.3, WeightDecay: 0.01}, 1},
	{"sgd nesterov", "sgd", optim.Config{LR: 0.1, Momentum: 0.9, Nesterov: true}, 1},
	{"sgd nesterov decay", "sgd", optim.Config{LR: 0.1, Momentum: 0.9, Nesterov: true, WeightDecay: 0.01},
		1},
	{"adam", "adam", optim.Config{LR: 0.01}, 2},
	{"adam decay", "adam", optim.Config{LR: 0.01, WeightDecay: 0.01}, 2},
	{"adamw", "adamw", optim.Config{LR: 0.01, WeightDecay: 0.01}, 2},
	{"rmsprop", "rmsprop", optim.Config{LR: 0.01}, 1},
	{"rmsprop all", "rmsprop", optim.Config{LR: 0.01, Momentum: 0.9, Centered: true, WeightDecay: 0.01},
		3},
}

func newOptimizer(t *testing.T, name string, o optim.Config) optim.Optimizer {
	t.Helper()
	opt := must.Get(optim.New(name, o))(t)
	t.Cleanup(opt.Close)
	return opt
}

// values copies the parameters out as bytes, by name.
func values(params []nn.NamedParam) map[string]string {
	out := map[string]string{}
	for _, p := range params {
		out[p.Name] = string(torch.Bytes(p.Tensor()))
	}
	return out
}

// state copies the optimizer's state out, with its counters.
func state(o optim.Optimizer) map[string]string {
	out := map[string]string{}
	for _, s := range o.State() {
		out[s.Name] = string(torch.Bytes(s.Tensor))
	}
	for name, n := range o.Steps() {
		out["steps of "+name] = fmt.Sprint(n)
	}
	return out
}

// differ names the first entries that are not the same in both.
func differ(t *testing.T, what string, got, want map[string]string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d entries, want %d", what, len(got), len(want))
	}
	for name := range want {
		if got[name] != want[name] {
			t.Errorf("%s: %s differs", what, name)
		}
	}
}

// clip clips gradients on one device. It returns the norm before clipping.
func clip(c *torch.Ctx, params []nn.NamedParam, most float64) (norm float64, err error) {
	norm = gradnorm.Global(gradnorm.Squared(c, params))
	factor, err := gradnorm.ClipFactor(norm, most)
	if err == nil {
		gradnorm.Scale(c, params, factor)
	}
	return norm, err
}
