package nn_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/torch"
)

// network has a nested Sequential, a composite layer and a buffer.
func network() *nn.Sequential {
	return nn.NewSequential().
		Add("stem", nn.NewLinear(4, 8)).
		Add("body", nn.NewSequential(nn.NewBatchNorm1d(8, nn.BatchNormConfig{}),
			nn.NewSequential(nn.NewReLU(), nn.NewLinear(8, 8)))).
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
		{"state", names(nn.State(s)), "stem.weight stem.bias body.0.weight body.0.bias " +
			"body.0.running_mean body.0.running_var body.0.num_batches_tracked " +
			"body.1.1.weight body.1.1.bias head.weight"},
		{"parameters", names(nn.Params(s)), "stem.weight stem.bias body.0.weight body.0.bias " +
			"body.1.1.weight body.1.1.bias head.weight"},
		{"buffers", names(nn.Buffers(s)), "body.0.running_mean body.0.running_var " +
			"body.0.num_batches_tracked"},
	} {
		if row.got != row.want {
			t.Errorf("%s:\ngot  %s\nwant %s", row.what, row.got, row.want)
		}
	}
	if n := nn.Count(s); n != 4*8+8+8+8+8*8+8+8*2 {
		t.Errorf("%d parameters", n)
	}
	nn.Params(s)[0].SetTrainable(false)
	if got := names(nn.Params(s)); strings.Contains(got, "stem.weight") ||
		nn.Params(s)[0].Name != "stem.bias" {
		t.Errorf("a frozen parameter is among those to train: %s", got)
	}
}

func TestLayersFlattensSequentialsOnly(t *testing.T) {
	block := nn.NewBasicBlock(4, 8, 2)
	s := network().Add("block", nn.Tuple(block, block.ForwardTuple)) // holds a Sequential, and stays whole
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

// pair subtracts what two of its layers make of x.
type pair struct {
	nn.Base
	a, b nn.Layer
	run  func(c *nn.Ctx, x *torch.Tensor, l nn.Layer) *torch.Tensor
}

func newPair(a, b nn.Layer, declare bool) *pair {
	p := &pair{a: a, b: b, run: func(c *nn.Ctx, x *torch.Tensor, l nn.Layer) *torch.Tensor {
		return c.Run(x, l)
	}}
	if declare {
		p.Child("a", a)
		p.Child("b", b)
	}
	return p
}

func (p *pair) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	return c.Sub(p.run(c, x, p.a), p.run(c, x, p.b))
}

func dropouts() (a, b nn.Layer) { return nn.NewDropout(0.5), nn.NewDropout(0.5) }

func TestModulesRunOnlyTheirChildren(t *testing.T) {
	undeclared := func() *pair { a, b := dropouts(); return newPair(a, b, false) }
	declared := func() *pair { a, b := dropouts(); return newPair(a, b, true) }
	inside := func(l nn.Layer) *nn.Sequential {
		return nn.NewSequential().Add("block", nn.NewSequential().Add("1", l))
	}
	direct := newPair(nn.NewSequential(nn.NewDropout(0.5)), nn.NewSequential(nn.NewDropout(0.5)), true)
	direct.run = func(c *nn.Ctx, x *torch.Tensor, l nn.Layer) *torch.Tensor { return l.Forward(c, x) }
	named := undeclared()
	named.run = func(c *nn.Ctx, x *torch.Tensor, l nn.Layer) *torch.Tensor {
		return c.RunNamed(nn.NamedLayer{Name: "drop", Layer: l}, []*torch.Tensor{x})[0]
	}
	grand := declared()
	grand.b = nn.NewSequential(nn.NewIdentity())
	grand.Child("c", grand.b)
	grand.run = func(c *nn.Ctx, x *torch.Tensor, l nn.Layer) *torch.Tensor {
		if s, ok := l.(*nn.Sequential); ok {
			l = s.Layers()[0].Layer
		}
		return c.Run(x, l)
	}
	checkpoint := undeclared()
	checkpoint.run = func(c *nn.Ctx, x *torch.Tensor, l nn.Layer) *torch.Tensor {
		return c.Checkpoint(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
			return []*torch.Tensor{c.Run(xs[0], l)}
		}, x)[0]
	}
	const missing = `*nn.dropout is no declared child of *nn_test.pair, layer "block.1", which runs it; ` +
		`declare it with Child`
	for _, row := range []struct {
		name  string
		model nn.Layer
		want  string // "" where it runs
	}{
		{"declared", inside(declared()), ""},
		{"two Dropouts that are not", inside(undeclared()), missing},
		{"a Linear that is not", inside(newPair(nn.NewLinear(4, 4), nn.NewIdentity(), false)),
			`*nn.Linear is no declared child of *nn_test.pair, layer "block.1", which runs it; declare ` +
				`it with Child`},
		{"under a name of its own", inside(named), missing},
		{"in a checkpoint", inside(checkpoint), missing},
		{"in a checkpointed module", inside(nn.Checkpointed(undeclared())), missing},
		{"wrapped", inside(newPair(nn.Checkpointed(nn.NewDropout(0.5)), nn.NewIdentity(), false)), missing},
		{"wrapped and declared", inside(newPair(nn.Checkpointed(nn.NewDropout(0.5)),
			tupleOf(nn.NewSequential(nn.NewDropout(0.5))), true)), ""},
		{"a child's Forward called", inside(direct),
			`*nn.dropout is no declared child of *nn_test.pair, layer "block.1", which runs it;`},
		{"a child of a child", inside(grand),
			`*nn.identity is no declared child of *nn_test.pair, layer "block.1", which runs it;`},
		{"in a model that is no Sequential", undeclared(), "*nn.dropout is no part of the model that " +
			"this Ctx has run"},
		{"declared in one", declared(), ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			base := torchtest.New(t, torch.Options{Grad: true})
			x := base.Ones(torch.Float32, 64, 4).SetRequiresGrad(true)
			nn.Materialise(base, nn.State(row.model), 1)
			defer nn.Free(row.model)
			c := nn.NewCtx(base, nn.Config{Training: true, Seed: 1})
			var y *torch.Tensor
			err := torch.Try(func() { y = row.model.Forward(c, x) })
			switch {
			case row.want == "" && err != nil:
				t.Error(err)
			case row.want == "" && !slices.ContainsFunc(torch.Values[float32](y),
				func(v float32) bool { return v != 0 }):
				t.Error("two children drew the same mask")
			case row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want)):
				t.Errorf("got  %v\nwant %s", err, row.want)
			}
		})
	}
}

// Outside of all modules a layer without a parent is a model, which runs as often as one likes;
// another one has to have a name.
func TestModelsOutsideOfModules(t *testing.T) {
	c := nn.NewCtx(torchtest.New(t, torch.Options{}), nn.Config{Training: true, Seed: 1})
	x := c.Ones(torch.Float32, 64)
	first, second := nn.NewDropout(0.5), nn.NewDropout(0.5)
	whole := nn.NewSequential(nn.NewTanh())
	a := c.Run(x, first)
	if err := torch.Try(func() { c.Run(x, first); whole.Forward(c, x) }); err != nil {
		t.Error(err)
	}
	err := torch.Try(func() { c.Run(x, second) })
	if want := "*nn.dropout is no part of the model that this Ctx has run"; err == nil ||
		!strings.Contains(err.Error(), want) || !strings.Contains(err.Error(),
		"run it under a name with RunNamed, or on another Ctx") {
		t.Errorf("got %v, want %s", err, want)
	}
	b := c.RunNamed(nn.NamedLayer{Name: "second", Layer: second}, []*torch.Tensor{x})[0]
	if slices.Equal(torch.Values[float32](a), torch.Values[float32](b)) {
		t.Error("two models drew the same mask")
	}
}

// tiedHead is a language model whose head is its embedding.
func tiedHead(words, dim int64, bias bool) *nn.Sequential {
	embedding := nn.NewEmbedding(words, dim, nn.EmbeddingConfig{})
	return nn.NewSequential().Add("embedding", embedding).Add("body", nn.NewLinear(dim, dim)).Add("tanh",
		nn.NewTanh()).Add("head", nn.NewLinearShared(embedding.Weight, bias))
}

func head(model *nn.Sequential) *nn.Linear { return model.Layers()[3].Layer.(*nn.Linear) }

// backward runs the model on words and leaves its gradients.
func backward(c *torch.Ctx, model *nn.Sequential) {
	y := model.Forward(nn.NewCtx(c, nn.Config{Training: true}), torch.From(c, []int64{3, 0, 6, 3}))
	c.Backward([]*torch.Tensor{y}, []*torch.Tensor{c.Op("aten::ones_like", y)}, false)
}

func TestASharedParameterIsThereOnce(t *testing.T) {
	a := newAccount(t, true)
	model := tiedHead(7, 4, true)
	for _, row := range []struct{ what, got, want string }{
		{"state", names(nn.State(model)), "embedding.weight body.weight body.bias head.bias"},
		{"parameters", names(nn.Params(model)), "embedding.weight body.weight body.bias head.bias"},
		{"shared", names(nn.Shared(model)), "embedding.weight head.weight"},
		{"of the head alone", names(model.Layers()[3].State()), "head.weight head.bias"},
	} {
		if row.got != row.want {
			t.Errorf("%s: got %s, want %s", row.what, row.got, row.want)
		}
	}
	const count = 7*4 + 4*4 + 4 + 7
	if n := nn.Count(model); n != count {
		t.Errorf("%d parameters, want %d", n, count)
	}
	a.start()
	nn.Materialise(a.Ctx, nn.State(model), 1)
	if a.used() != 4*count {
		t.Errorf("they take %d bytes, want %d", a.used(), 4*count)
	}
	backward(a.Ctx, model)
	a.Close()
	if a.used() != 2*4*count {
		t.Errorf("with gradients they take %d bytes, want %d", a.used(), 2*4*count)
	}
	nn.ZeroGrads(model)
	if a.used() != 4*count {
		t.Errorf("without gradients again they take %d bytes, want %d", a.used(), 4*count)
	}
	nn.Free(model)
	if a.used() != 0 || head(model).Weight.Exists() {
		t.Errorf("%d bytes are left, the head's weight exists: %v", a.used(), head(model).Weight.Exists())
	}
}

// gradient is a leaf's, which it loses.
func gradient(c *torch.Ctx, leaf *torch.Tensor) []float32 {
	g := torch.Values[float32](c.GradOf(leaf))
	leaf.SetGradOf(nil)
	return g
}

func sum(a, b []float32) []float32 {
	out := make([]float32, len(a))
	for i := range a {
		out[i] = a[i] + b[i]
	}
	return out
}

// A replica takes the gradient of its handle alone; the parts add up to the whole.
func TestReplicas(t *testing.T) {
	c := torchtest.New(t, torch.Options{Grad: true})
	model := tiedHead(7, 4, false)
	nn.Materialise(c, nn.State(model), 1)
	defer nn.Free(model)
	embedding, handle := nn.State(model)[0].Param, head(model).Weight
	whole := embedding.Tensor()
	backward(c, model)
	want := gradient(c, whole)

	for _, row := range []struct {
		reason       string
		replica, own *nn.Param // which of the two has a replica, and which not
	}{{"of a handle", handle, embedding}, {"of the parameter itself", embedding, handle}} {
		replica := c.Clone(c.Detach(whole)).SetRequiresGrad(true)
		row.replica.Replicate(replica)
		if row.replica.Tensor() != replica || row.replica.Replica() != replica ||
			row.own.Tensor() != whole || row.own.Replica() != nil {
			t.Errorf("%s: it is not used", row.reason)
		}
		nn.ZeroGrads(model)
		backward(c, model)
		apart := gradient(c, replica)
		if slices.Equal(apart, want) || !slices.Equal(sum(apart, gradient(c, whole)), want) {
			t.Errorf("%s: the gradients do not add up", row.reason)
		}
		backward(c, model)
		if nn.ZeroGrads(model); whole.HasGrad() || !replica.HasGrad() {
			t.Errorf("%s: ZeroGrads is for the value's gradient: it is there: %v, the replica's: %v",
				row.reason, whole.HasGrad(), replica.HasGrad())
		}
		replica.SetGradOf(nil)
		row.replica.Replicate(nil)
		if row.replica.Tensor() != whole || row.replica.Replica() != nil || replica.Freed() {
			t.Errorf("%s: taken away, it is still used, or freed", row.reason)
		}
	}
}

func TestFreezeAndUnfreezeAtAnyTime(t *testing.T) {
	c := torchtest.New(t, torch.Options{Grad: true})
	m := nn.NewSequential(nn.NewLinear(2, 2), nn.NewBatchNorm1d(2, nn.BatchNormConfig{}), nn.NewLinear(2, 1))
	nn.Materialise(c, nn.State(m), 1)
	defer nn.Free(m)
	modes := nn.Modes(m)
	step := func() (with []string) {
		nn.ZeroGrads(m)
		y := m.Forward(nn.NewCtx(c, nn.Config{Training: true}), c.Randn(4, 2))
		c.Backward([]*torch.Tensor{y}, []*torch.Tensor{c.Op("aten::ones_like", y)}, false)
		for _, p := range nn.State(m) {
			if p.Tensor().HasGrad() {
				with = append(with, p.Name)
			}
		}
		return with
	}
	all := step()
	if len(all) != 6 || !slices.Equal(nn.Modes(m), modes) {
		t.Fatalf("gradients of %q", all)
	}
	nn.Freeze(m.Slice(0, 2))
	if m.Layers()[0].Layer.(*nn.Linear).Weight.Tensor().HasGrad() {
		t.Error("a frozen parameter keeps its gradient")
	}
	if got := step(); !slices.Equal(got, []string{"2.weight", "2.bias"}) || slices.Equal(nn.Modes(m), modes) {
		t.Errorf("with the body frozen, gradients of %q", got)
	}
	nn.Unfreeze(m)
	if got := step(); !slices.Equal(got, all) || !slices.Equal(nn.Modes(m), modes) {
		t.Errorf("unfrozen, gradients of %q", got)
	}
	if nn.Buffers(m)[0].SetTrainable(true); nn.Buffers(m)[0].Trainable() {
		t.Error("a buffer is trained")
	}
}

func TestReplaceAndSlice(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	body := nn.NewSequential().Add("conv", nn.NewLinear(2, 3)).Add("act", nn.NewTanh())
	m := nn.NewSequential().Add("body", body).Add("fc", nn.NewLinear(3, 4)).Add("end", nn.NewTanh())
	names := func(m nn.Module) (out []string) {
		for _, p := range nn.State(m) {
			out = append(out, p.Name)
		}
		return out
	}
	before := strings.Join(names(m), " ")
	old := m.Replace("fc", nn.NewLinear(3, 7))
	if got := strings.Join(names(m), " "); got != before || m.Len() != 3 || m.Layers()[2].Name != "fc" {
		t.Errorf("the parameters are %s, want %s, in the old order", got, before)
	}
	other := nn.NewSequential().Add("kept", old) // it has no parent any more
	m.Replace("body.act", nn.NewReLU())
	m.Replace("body.conv", nn.NewLinearNoBias(2, 3))
	nn.Materialise(c, nn.State(m), 1)
	nn.Materialise(c, nn.State(other), 1)
	defer nn.Free(m)
	defer nn.Free(other)
	if y := m.Forward(nn.NewCtx(c, nn.Config{}), c.Randn(5, 2)); y.Size(1) != 7 {
		t.Errorf("the output is %v", y)
	}
	if got := strings.Join(names(m), " "); got != "body.conv.weight fc.weight fc.bias" {
		t.Errorf("the parameters are %s", got)
	}

	part := m.Slice(0, 2)
	if got := strings.Join(names(part), " "); got != "body.conv.weight fc.weight fc.bias" || part.Len() != 2 {
		t.Errorf("the slice has %s", got)
	}
	x := c.Randn(5, 2)
	want := torch.Values[float32](m.Forward(nn.NewCtx(c, nn.Config{}), x))
	if got := torch.Values[float32](c.Op("aten::tanh", part.Forward(nn.NewCtx(c, nn.Config{}),
		x))); !slices.Equal(got, want) {
		t.Error("the slice computes something else")
	}
	headed := m.Slice(0, 1).Add("head", nn.NewLinear(3, 2))
	nn.Materialise(c, nn.State(headed), 1)
	defer nn.Free(headed)
	if y := headed.Forward(nn.NewCtx(c, nn.Config{}), x); y.Size(1) != 2 || m.Len() != 3 {
		t.Errorf("the other head gives %v, and the model has %d layers", y, m.Len())
	}
	outer := nn.NewSequential().Add("a", m.Slice(0, 1)).Add("b", nn.NewTanh())
	if got := names(outer); !slices.Equal(got, []string{"a.body.conv.weight"}) {
		t.Errorf("a slice in another model has %q", got)
	}
	outer.Forward(nn.NewCtx(c, nn.Config{}), x)

	for _, row := range []struct {
		want string
		f    func()
	}{
		{`nn: Replace: there is no layer "head"`, func() { m.Replace("head", nn.NewTanh()) }},
		{`nn: Replace: there is no layer "body.x"`, func() { m.Replace("body.x", nn.NewTanh()) }},
		{`nn: module "kept" is already part of another module`, func() { m.Replace("fc", old) }},
	} {
		if got := recovered(row.f); !strings.HasPrefix(got, row.want) {
			t.Errorf("got  %q\nwant %q", got, row.want)
		}
	}
	if got := strings.Join(names(m), " "); got != "body.conv.weight fc.weight fc.bias" {
		t.Errorf("after what was refused the parameters are %s", got)
	}
}

// All but some layers are constants that run as in evaluation; a parameter that one of these shares
// is trained.
func TestTrainOnly(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	tied := nn.NewLinear(2, 2)
	m := nn.NewSequential().
		Add("body", nn.NewSequential().Add("in", tied).Add("norm", nn.NewBatchNorm1d(2,
			nn.BatchNormConfig{})).Add("act", nn.NewTanh())).
		Add("head", nn.NewSequential().Add("first", nn.NewLinear(2, 2)).Add("last", nn.NewLinear(2, 2))).
		Add("out", nn.NewLinearShared(tied.Weight, false))
	nn.Materialise(c, nn.State(m), 1)
	defer nn.Free(m)
	trained := func() (names []string) {
		for _, p := range nn.State(m) {
			if p.Trainable() {
				names = append(names, p.Name)
			}
		}
		return names
	}
	norm := m.Layers()[1].Layer.(*nn.BatchNorm)
	for _, row := range []struct {
		patterns, want []string
	}{
		{[]string{"head.*"}, []string{"head.first.weight", "head.first.bias", "head.last.weight",
			"head.last.bias"}},
		{[]string{"head.last", "body.norm"}, []string{"body.norm.weight", "body.norm.bias",
			"head.last.weight", "head.last.bias"}},
		{[]string{"out"}, []string{"body.in.weight"}},
	} {
		if err := nn.TrainOnly(m, row.patterns...); err != nil || !slices.Equal(trained(), row.want) {
			t.Errorf("%q: %v, trained are %q, want %q", row.patterns, err, trained(), row.want)
		}
		before := torch.Item[int64](norm.NumBatchesTracked.Tensor())
		m.Forward(nn.NewCtx(c, nn.Config{Training: true}), c.Randn(4, 2))
		if moved := torch.Item[int64](norm.NumBatchesTracked.Tensor()) != before; moved != slices.Contains(row.patterns, "body.norm") {
			t.Errorf("%q: the statistics move: %v", row.patterns, moved)
		}
	}
	before := trained()
	for pattern, want := range map[string]string{
		"heads.*": `nn: TrainOnly: no layer with parameters is named "heads.*"; there are "body.in", ` +
			`"body.norm", "body.act", "head.first" and 2 more, and the last is "out"`,
		"body.act": `nn: TrainOnly: no layer with parameters is named "body.act"; there are "body.in", ` +
			`"body.norm", "body.act", "head.first" and 2 more, and the last is "out"`,
	} {
		if err := nn.TrainOnly(m, "out", pattern); err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
	if !slices.Equal(trained(), before) {
		t.Error("what was refused has changed the model")
	}
}

// pairOf is a layer with a parameter of its own and two layers inside.
type pairOf struct {
	nn.Base
	scale  *nn.Param
	layers []nn.Layer
}

func newPairOf() *pairOf {
	l := &pairOf{layers: []nn.Layer{nn.NewLinear(8, 8), nn.NewLinear(8, 8)}}
	l.scale = l.Param("scale", nn.Ones)
	l.Child("first", l.layers[0])
	l.Child("second", l.layers[1])
	return l
}

func (l *pairOf) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	return c.Mul(c.Run(x, l.layers...), l.scale.Tensor())
}

// The text is read by people: layers as a balance counts them, with what is known without an input.
func TestPrintedModelIsASummary(t *testing.T) {
	embedding := nn.NewEmbedding(10, 8, nn.EmbeddingConfig{})
	norm := nn.NewBatchNorm1d(8, nn.BatchNormConfig{})
	frozen := nn.NewLinearNoBias(8, 8)
	frozen.Weight.SetTrainable(false)
	model := nn.NewSequential().
		Add("embed", embedding).
		Add("body", nn.NewSequential(nn.NewLinear(8, 8), nn.NewReLU(), norm)).
		Add("pair", newPairOf()).
		Add("frozen", nn.Checkpointed(frozen)).
		Add("head", nn.NewLinearShared(embedding.Weight, true))
	want := `layer   type       shapes                              parameters  bytes
embed   Embedding  weight [10 8]                       80          320
body.0  Linear     weight [8 8], bias [8]              72          288
body.1  ReLU                                           0           0
body.2  BatchNorm  weight [8], bias [8]                16          136
pair    pairOf     5 tensors                           145         580
frozen  Linear     weight [8 8] frozen                 0           256
head    Linear     weight shared with embed, bias [10] 10          40
        7 layers                                       323         1620`
	if diff := cmp.Diff(strings.Fields(want), strings.Fields(fmt.Sprint(model))); diff != "" {
		t.Error(diff)
	}
	if got, want := nn.Count(model), int64(323); got != want {
		t.Errorf("Count says %d parameters, the summary %d", got, want)
	}
}
