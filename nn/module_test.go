package nn_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/torch"
)

// network has a nested Sequential, a composite layer and a buffer.
func network() *nn.Sequential {
	return nn.NewSequential().
		Add("stem", nn.NewLinear(4, 8)).
		Add("body", nn.NewSequential(nn.NewBatchNorm1d(8, nn.BatchNormConfig{}), nn.NewSequential(nn.NewReLU(), nn.NewLinear(8, 8)))).
		Add("head", nn.NewLinearNoBias(8, 2))
}

func names(list []nn.NamedParam) string {
	var out []string
	for _, p := range list {
		out = append(out, p.Name)
	}
	return strings.Join(out, " ")
}

func TestStateListsByDeclaration(t *testing.T) {
	s := network()
	for _, row := range []struct{ what, got, want string }{
		{"state", names(nn.State(s)), "stem.weight stem.bias body.0.weight body.0.bias body.0.running_mean body.0.running_var body.0.num_batches_tracked " +
			"body.1.1.weight body.1.1.bias head.weight"},
		{"parameters", names(nn.Params(s)), "stem.weight stem.bias body.0.weight body.0.bias body.1.1.weight body.1.1.bias head.weight"},
		{"buffers", names(nn.Buffers(s)), "body.0.running_mean body.0.running_var body.0.num_batches_tracked"},
	} {
		if row.got != row.want {
			t.Errorf("%s:\ngot  %s\nwant %s", row.what, row.got, row.want)
		}
	}
	if n := nn.Count(s); n != 4*8+8+8+8+8*8+8+8*2 {
		t.Errorf("%d parameters", n)
	}
	nn.Params(s)[0].Freeze()
	if got := names(nn.Params(s)); strings.Contains(got, "stem.weight") || nn.Params(s)[0].Name != "stem.bias" {
		t.Errorf("a frozen parameter is among those to train: %s", got)
	}
}

func TestLayersFlattensSequentialsOnly(t *testing.T) {
	s := network().Add("block", nn.NewBasicBlock(4, 8, 2)) // holds a Sequential, and stays whole
	var got []string
	for _, l := range s.Layers() {
		got = append(got, l.Name)
	}
	if want := "stem body.0 body.1.0 body.1.1 head block"; strings.Join(got, " ") != want {
		t.Errorf("got %v, want %s", got, want)
	}
	if got := names(s.Layers()[3].State()); got != "body.1.1.weight body.1.1.bias" {
		t.Errorf("the state of a flattened layer is %s", got)
	}
	if s.Len() != 4 {
		t.Errorf("%d children, want 4", s.Len())
	}
}

func TestSharedParametersAreListedOnce(t *testing.T) {
	a, b := nn.NewLinear(2, 2), &nn.Sequential{}
	b.Share("tied", a.Weight)
	s := nn.NewSequential().Add("a", a).Add("b", b)
	if got := names(nn.State(s)); got != "a.weight a.bias" {
		t.Errorf("got %s", got)
	}
}

func TestBaseRefusesMisuse(t *testing.T) {
	child := nn.NewTanh()
	nn.NewSequential().Add("taken", child)
	for _, row := range []struct {
		reason, want string
		f            func()
	}{
		{"a name twice", `"a" is declared twice`, func() { nn.NewSequential().Add("a", nn.NewTanh()).Add("a", nn.NewTanh()) }},
		{"a parameter named as a child", `"a" is declared twice`, func() { nn.NewSequential().Add("a", nn.NewTanh()).Param("a", nn.Ones, 1) }},
		{"a child named as a parameter", `"weight" is declared twice`, func() { nn.NewLinear(1, 1).Child("weight", nn.NewTanh()) }},
		{"two parents", `module "taken" is already part of another module`, func() { nn.NewSequential(child) }},
		{"use before it exists", "call nn.Materialise or pipe.New first", func() { nn.NewLinear(1, 1).Weight.Tensor() }},
	} {
		if got := recovered(row.f); !strings.Contains(got, row.want) {
			t.Errorf("%s: got %q, want %q in it", row.reason, got, row.want)
		}
	}
}

// recovered is the text that f panics with, "" if it does not.
func recovered(f func()) (text string) {
	defer func() {
		if r := recover(); r != nil {
			text, _ = r.(string)
			if text == "" {
				text = "not a string"
			}
		}
	}()
	f()
	return ""
}

func TestMaterialiseDependsOnNamesAndSeedAlone(t *testing.T) {
	torchtest.Check(t)
	values := func(device torch.Device, seed uint64, in func([]nn.NamedParam)) map[string][]byte {
		c := torch.NewCtx(torch.Options{Device: device, Threads: 1})
		defer c.Close()
		s := network()
		defer nn.Free(s)
		list := nn.State(s)
		in(list)
		c.SetSeed(seed * 77) // the context's own draws must not matter
		c.NextSeed()
		for len(list) > 0 { // in parts, as stages do
			n := min(3, len(list))
			nn.Materialise(c, list[:n], seed)
			list = list[n:]
		}
		out := map[string][]byte{}
		for _, p := range nn.State(s) {
			out[p.Name] = torch.Bytes(p.Tensor())
		}
		return out
	}
	same := func(a, b map[string][]byte) bool {
		for name := range a {
			if !bytes.Equal(a[name], b[name]) {
				return false
			}
		}
		return true
	}
	plain := values(torch.CPU(0), 1, func([]nn.NamedParam) {})
	if !same(plain, values(torch.CPU(3), 1, slices.Reverse[[]nn.NamedParam])) {
		t.Error("order, partition or device changed the values")
	}
	if same(plain, values(torch.CPU(0), 2, func([]nn.NamedParam) {})) {
		t.Error("another seed gave the same values")
	}
	if bytes.Equal(plain["stem.bias"], plain["body.1.1.bias"]) {
		t.Error("two names gave the same values")
	}
}

func TestMaterialiseKeepsWhatExistsAndTheContextsDraws(t *testing.T) {
	c := torchtest.New(t, torch.Options{Grad: true})
	l := nn.NewLinear(2, 3)
	defer nn.Free(l)
	mine := c.Keep(c.Ones(torch.Float32, 3))
	l.Bias.SetTensor(mine)
	c.SetSeed(9)
	c.NextSeed()
	nn.Materialise(c, nn.State(l), 1)
	if l.Bias.Tensor() != mine {
		t.Error("an existing parameter was replaced")
	}
	if seed, draws := c.Draws(); seed != 9 || draws != 1 {
		t.Errorf("the context's draws went on to seed %d, %d", seed, draws)
	}
	if !l.Weight.Tensor().RequiresGrad() || !c.Grad() {
		t.Error("a trained parameter must want a gradient, and the context its mode back")
	}
	if got := recovered(func() { l.Bias.SetTensor(c.Ones(torch.Float32, 2)) }); !strings.Contains(got, "a parameter of float32[3] cannot hold float32[2]") {
		t.Errorf("a wrong shape: got %q", got)
	}
}

func TestFreeLeavesNoBytes(t *testing.T) {
	torchtest.Check(t)
	device := torch.CPU(2)
	c := torch.NewCtx(torch.Options{Device: device, Grad: true, Threads: 1})
	defer c.Close()
	before := device.Memory().Live
	s := network()
	nn.Materialise(c, nn.State(s), 1)
	if got, want := device.Memory().Live-before, nn.Count(s)*4+2*8*4+8; got != want {
		t.Errorf("parameters and buffers take %d bytes, want %d", got, want)
	}
	y := s.Forward(nn.NewCtx(c, nn.Config{Training: true}), c.Ones(torch.Float32, 3, 4))
	c.Backward([]*torch.Tensor{y}, []*torch.Tensor{c.OnesLike(y)}, false)
	c.Close()
	if got, want := device.Memory().Live-before, 2*nn.Count(s)*4+2*8*4+8; got != want {
		t.Errorf("with gradients they take %d bytes, want %d", got, want)
	}
	nn.ZeroGrads(s)
	if got, want := device.Memory().Live-before, nn.Count(s)*4+2*8*4+8; got != want {
		t.Errorf("without gradients again they take %d bytes, want %d", got, want)
	}
	nn.Free(s)
	nn.Free(s)
	if got := device.Memory().Live - before; got != 0 {
		t.Errorf("%d bytes are left", got)
	}
	if nn.State(s)[0].Exists() {
		t.Error("a freed parameter exists")
	}
}
