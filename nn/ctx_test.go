package nn_test

import (
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"penstock.example/internal/engine"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/torch"
)

func TestRandomNumbersFollowSeedMicroBatchAndName(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	x := c.Ones(torch.Float32, 256)
	run := func(o nn.Config, l nn.NamedLayer) []float32 {
		o.Training = true
		return torch.Values[float32](nn.NewCtx(c, o).RunNamed(l, []*torch.Tensor{x})[0])
	}
	named := func(name string) nn.NamedLayer { return nn.NamedLayer{Name: name, Layer: nn.NewDropout(0.5)} }
	want := run(nn.Config{Seed: 1, MicroBatch: 2, MicroBatches: 4}, named("a.b.c"))

	nested := nn.NewSequential().Add("b", nn.NewSequential().Add("c", nn.NewDropout(0.5)))
	for _, row := range []struct {
		reason string
		got    []float32
		same   bool
	}{
		{"the same again", run(nn.Config{Seed: 1, MicroBatch: 2, MicroBatches: 4}, named("a.b.c")), true},
		{"a recomputation", run(nn.Config{Seed: 1, MicroBatch: 2, MicroBatches: 4, Recomputing: true},
			named("a.b.c")), true},
		{"nested in Sequentials", run(nn.Config{Seed: 1, MicroBatch: 2, MicroBatches: 4},
			nn.NamedLayer{Name: "a", Layer: nested}), true},
		{"flattened by a partition", run(nn.Config{Seed: 1, MicroBatch: 2, MicroBatches: 4},
			nn.NewSequential().Add("a",
				nn.NewSequential().Add("b",
					nn.NewSequential().Add("c", nn.NewDropout(0.5)))).Layers()[0]), true},
		{"another micro-batch", run(nn.Config{Seed: 1, MicroBatch: 3, MicroBatches: 4}, named("a.b.c")),
			false},
		{"another seed", run(nn.Config{Seed: 2, MicroBatch: 2, MicroBatches: 4}, named("a.b.c")), false},
		{"another name", run(nn.Config{Seed: 1, MicroBatch: 2, MicroBatches: 4}, named("a.b.d")), false},
		{"the dots count", run(nn.Config{Seed: 1, MicroBatch: 2, MicroBatches: 4}, named("a.bc")), false},
	} {
		if slices.Equal(row.got, want) != row.same {
			t.Errorf("%s: the same bits: %v, want %v", row.reason, !row.same, row.same)
		}
	}
}

// noisy draws before and after its child, if it has one.
type noisy struct {
	nn.Base
	child         nn.Layer
	before, after []float32
}

func (n *noisy) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	n.before = torch.Values[float32](c.Dropout(x, 0.5))
	if n.child != nil {
		c.Run(x, n.child)
	}
	n.after = torch.Values[float32](c.Dropout(x, 0.5))
	return x
}

func TestChildrenDoNotDisturbTheirParentsDraws(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	x := c.Ones(torch.Float32, 256)
	alone, parent := &noisy{}, &noisy{child: &noisy{}}
	parent.Child("child", parent.child)
	for _, l := range []*noisy{alone, parent} {
		nn.NewCtx(c, nn.Config{Seed: 1}).RunNamed(nn.NamedLayer{Name: "l", Layer: l}, []*torch.Tensor{x})
	}
	if !slices.Equal(alone.before, parent.before) || !slices.Equal(alone.after, parent.after) {
		t.Error("a child changed what its parent drew")
	}
	if slices.Equal(parent.before, parent.after) || slices.Equal(parent.before,
		parent.child.(*noisy).before) {
		t.Error("two draws are the same")
	}
}

func TestPathIsWhereItPanicked(t *testing.T) {
	c := nn.NewCtx(torchtest.New(t, torch.Options{}), nn.Config{})
	s := nn.NewSequential().Add("a", nn.NewTanh()).Add("b", nn.NewSequential(nn.NewTanh(),
		nn.NewFlatten(0, 7)))
	err := torch.Try(func() {
		c.RunNamed(nn.NamedLayer{Name: "net", Layer: s}, []*torch.Tensor{c.Ones(torch.Float32, 2)})
	})
	if err == nil || c.Path() != "net.b.1" {
		t.Errorf("got %v at %q, want a failure at net.b.1", err, c.Path())
	}
	fine := nn.NewCtx(c.Ctx, nn.Config{})
	fine.RunNamed(nn.NamedLayer{Name: "a", Layer: nn.NewTanh()}, []*torch.Tensor{c.Ones(torch.Float32, 2)})
	if fine.Path() != "" {
		t.Errorf("after a run that went well the path is %q", fine.Path())
	}
}

func TestSpansNestAndNameTheInnermostLayer(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	base := torchtest.New(t, torch.Options{Grad: true})
	c := nn.NewCtx(base, nn.Config{Spans: true})
	s := nn.NewSequential().Add("a", nn.NewTanh()).Add("b", nn.NewSequential(nn.NewSigmoid(),
		nn.NewTanh())).Add("none", nn.NewIdentity())
	x := c.Ones(torch.Float32, 2).SetRequiresGrad(true)
	start := engine.Sequence()
	s.Forward(c, x)
	for i, want := range []string{"a", "b.0", "b.1", ""} {
		if layer := c.LayerOf(start + uint64(i)); layer != want {
			t.Errorf("node %d is of %q, want %q", i, layer, want)
		}
	}
}

// tuples is a layer of tuples that a test writes where it needs it.
type tuples struct {
	nn.Base
	f         func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor
	overwrite bool
}

func (l *tuples) ForwardTuple(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor { return l.f(c, xs) }
func (l *tuples) OverwritesInput() bool                                      { return l.overwrite }

func mapping(f func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor) nn.Layer {
	return tupleOf(&tuples{f: f})
}

func tupleOf(m interface {
	nn.Module
	ForwardTuple(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor
}) nn.Layer {
	return nn.Tuple(m, m.ForwardTuple)
}

// fork gives its input and the index of its largest element; join takes both.
func fork() nn.Layer {
	return mapping(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
		return []*torch.Tensor{xs[0], c.Argmax(xs[0], 1)}
	})
}

func join(children ...nn.Layer) nn.Layer {
	l := &tuples{}
	for _, child := range children {
		l.Child("table", child)
	}
	l.f = func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
		return []*torch.Tensor{c.Add(xs[0], c.Run(xs[1], children...))}
	}
	return nn.Tuple(l, l.ForwardTuple)
}

// each applies layers of one tensor to the elements of a tuple.
func each(layers ...nn.Layer) nn.Layer {
	l := &tuples{}
	for i, child := range layers {
		l.Child(string(rune('a'+i)), child)
	}
	l.f = func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
		out := slices.Clone(xs)
		for i := range layers {
			out[i] = c.Run(xs[i], layers[i])
		}
		return out
	}
	return nn.Tuple(l, l.ForwardTuple)
}

func TestTuplesComputeWhatTheNetworkWrittenOutComputes(t *testing.T) {
	c := torchtest.New(t, torch.Options{Grad: true})
	l, table := nn.NewLinear(4, 4), nn.NewEmbedding(4, 4, nn.EmbeddingConfig{})
	model := nn.NewSequential().Add("fork", fork()).Add("middle",
		nn.NewSequential(nn.NewSequential(each(l)), nn.NewSequential())).Add("join",
		join(table)).Add("tanh", nn.NewTanh())
	if got, want := names(nn.State(model)), "middle.0.0.a.weight middle.0.0.a.bias "+
		"join.table.weight"; got != want {
		t.Errorf("the state is %s, want %s", got, want)
	}
	var flat []string
	for _, l := range model.Layers() {
		flat = append(flat, l.Name)
	}
	if got, want := strings.Join(flat, " "), "fork middle.0.0 join tanh"; got != want {
		t.Errorf("the layers are %s, want %s", got, want)
	}
	nn.Materialise(c, nn.State(model), 1)
	defer nn.Free(model)
	for _, grad := range []bool{true, false} {
		c.SetGrad(grad)
		got := results(c, model, model.Forward)
		want := results(c, model, func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			return c.Op("aten::tanh", c.Add(l.Forward(c, x), table.Forward(c, c.Argmax(x, 1))))
		})
		if d := differs(got, want, 0); d != "" {
			t.Error(d)
		}
	}
}

func TestTuplesMustFit(t *testing.T) {
	pair := fork()
	none := mapping(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor { return nil })
	null := mapping(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
		return []*torch.Tensor{xs[0], nil}
	})
	freed := mapping(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
		y := c.Op("aten::tanh", xs[0])
		y.Free()
		return []*torch.Tensor{y, xs[0]}
	})
	nothing := doing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return nil })
	for _, row := range []struct {
		reason string
		model  *nn.Sequential
		where  string
		want   string
	}{
		{"a tuple into a layer of one tensor", nn.NewSequential(pair, nn.NewSequential().Add("tanh",
			nn.NewTanh())), "1.tanh",
			"Forward(float32[2,3], int64[2]): the layer takes one tensor and was given a tuple of 2; " +
				"make it with nn.Tuple"},
		{"an empty tuple", nn.NewSequential().Add("none", none), "none",
			"Forward(float32[2,3]): the layer must return tensors that exist; it returned an empty tuple"},
		{"a tensor that is nil", nn.NewSequential(null), "0", "Forward(float32[2,3]): the layer must " +
			"return tensors that exist; it returned float32[2,3], none"},
		{"a tensor that is freed", nn.NewSequential(freed), "0", "Forward(float32[2,3]): the layer " +
			"must return tensors that exist; it returned freed, float32[2,3]"},
		{"no tensor", nn.NewSequential(nothing), "0", "Forward(float32[2,3]): the layer must return " +
			"tensors that exist; it returned none"},
		{"a tuple out of a model of one tensor", nn.NewSequential(fork()), "",
			"Forward(float32[2,3], int64[2]): the model gives a tuple of 2 where one tensor is wanted; " +
				"run it with ForwardTuple or RunNamed"},
		{"a tuple out of a child that is run for one tensor",
			nn.NewSequential(composite(nn.NewSequential().Add("deep", fork()))), "0",
			`Forward(float32[2,3], int64[2]): "0" gives a tuple of 2 where one tensor is wanted; run it ` +
				`with ForwardTuple or RunNamed`},
	} {
		t.Run(row.reason, func(t *testing.T) {
			c := nn.NewCtx(torchtest.New(t, torch.Options{}), nn.Config{})
			err := torch.Try(func() { row.model.Forward(c, c.Ones(torch.Float32, 2, 3)) })
			if err == nil || err.Error() != row.want || c.Path() != row.where {
				t.Errorf("got  %v at %q\nwant %s at %q", err, c.Path(), row.want, row.where)
			}
		})
	}
}

func TestSharedBeyond(t *testing.T) {
	first, second := nn.NewLinearNoBias(3, 3), nn.NewLinearNoBias(3, 3)
	tie := func(p *nn.Param) nn.Layer {
		l := doing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return x })
		l.Share("weight", p)
		return l
	}
	inside, outside := tie(first.Weight), tie(second.Weight)
	m := nn.NewSequential(first, second, inside)
	if got := nn.SharedBeyond(m); !slices.Equal(got, []*nn.Param{second.Weight}) {
		t.Errorf("got %v, want the second weight", got)
	}
	if got := nn.SharedBeyond(nn.NewSequential(outside)); !slices.Equal(got, []*nn.Param{second.Weight}) {
		t.Errorf("of the module that shares: got %v, want the second weight", got)
	}
	if got := nn.SharedBeyond(nn.NewSequential(nn.NewLinear(2, 2), m,
		tie(first.Weight))); len(got) != 1 || got[0] != second.Weight {
		t.Errorf("got %v, want the second weight", got)
	}
}

// account is a context on a device of its own and what it uses, in bytes.
type account struct {
	*torch.Ctx
	live int64
}

func newAccount(t *testing.T, grad bool) *account {
	torchtest.Check(t)
	c := torch.NewCtx(torch.Options{Device: torch.CPU(6), Grad: grad, Threads: 1})
	t.Cleanup(c.Close)
	return &account{Ctx: c}
}

// start counts from here.
func (a *account) start() {
	a.Device().ResetPeak()
	a.live = a.Device().Memory().Live
}

func (a *account) used() int64 { return a.Device().Memory().Live - a.live }
func (a *account) peak() int64 { return a.Device().Memory().Peak - a.live }

// The scores are the only thing in a transformer that grows with the square of the length.
func TestAttentionKeepsItsScoresOnce(t *testing.T) {
	const tokens, scores, mask = 256, 256 * 256 * 4, 256 * 256
	for _, row := range []struct {
		reason     string
		grad       bool
		kept, peak int64
	}{
		{"without a graph", false, 0, 2 * scores},
		{"with one: the weights, and which scores were masked", true, scores + mask, 2*scores + mask},
	} {
		a := newAccount(t, row.grad)
		l := torchtest.SelfAttention(2, 1, true)
		nn.Materialise(a.Ctx, nn.State(l), 1)
		x := a.Ones(torch.Float32, 1, tokens, 2)
		a.start()
		l.Forward(nn.NewCtx(a.Ctx, nn.Config{}), x)
		const small = 16 * tokens * 2 * 4 // what grows with the length only
		if a.used() > row.kept+small || a.peak() > row.peak+small {
			t.Errorf("%s: %d bytes are kept and %d were live, want at most %d and %d", row.reason,
				a.used(), a.peak(), row.kept+small, row.peak+small)
		}
		nn.Free(l)
		a.Close()
	}
}

// Under autocast every layer takes what a product gives, bfloat16, and goes back through it. What
// it gives is near what it gives in float32, and parameters have gradients of float32.
func TestLayersTakeWhatAProductGives(t *testing.T) {
	const half, single = torch.BFloat16, torch.Float32
	// of the length: where rounding moves one ReLU in a hundred to the other side, a tenth of a
	// gradient is another
	const tolerance = 0.2
	image, rows, sequence := []int64{8, 2, 12, 12}, []int64{8, 6}, []int64{2, 5, 8}
	transposed := torch.Float32 // as autocast of 1.13 has it; that of 2.6 has bfloat16
	if !strings.HasPrefix(torch.Version(), "1.") {
		transposed = half
	}
	for name, row := range map[string]struct {
		layer nn.Layer
		shape []int64
		gives torch.DType
	}{
		"Linear":      {nn.NewLinear(6, 3), rows, half},
		"Conv2d":      {nn.NewConv2d(2, 3, nn.Square(3), nn.ConvConfig{}), image, half},
		"BatchNorm2d": {nn.NewBatchNorm2d(2, nn.BatchNormConfig{}), image, half},
		"BatchNorm without parameters": {nn.NewBatchNorm2d(2, nn.BatchNormConfig{NoAffine: true,
			NoRunningStats: true}), image, half},
		"LayerNorm": {nn.NewLayerNorm([]int64{6}, nn.NormConfig{}), rows, single},
		"LayerNorm without parameters": {nn.NewLayerNorm([]int64{6},
			nn.NormConfig{NoAffine: true}), rows, half},
		"ConvTranspose2d": {nn.NewConvTranspose2d(2, 3, nn.Square(2),
			nn.ConvConfig{Stride: nn.Square(2)}), image, transposed},
		"GroupNorm":                    {nn.NewGroupNorm(1, 2, nn.NormConfig{}), image, single},
		"GroupNorm without parameters": {nn.NewGroupNorm(1, 2, nn.NormConfig{NoAffine: true}), image, half},
		"RMSNorm":                      {nn.NewRMSNorm([]int64{6}, nn.NormConfig{}), rows, single},
		"RMSNorm without parameters": {nn.NewRMSNorm([]int64{6}, nn.NormConfig{NoAffine: true}), rows,
			half},
		"ReLU in place":       {nn.NewReLUInPlace(), rows, half},
		"GELU":                {nn.NewGELU(), rows, half},
		"LogSoftmax":          {nn.NewLogSoftmax(1), rows, half},
		"Dropout2d":           {nn.NewDropout2d(0.5), image, half},
		"attention":           {torchtest.SelfAttention(8, 2, true), sequence, half},
		"a transformer block": {torchtest.TransformerBlock(8, 2, 0.1), sequence, half},
		"a basic block":       {nn.NewBasicBlock(2, 4, 2), image, half},
	} {
		t.Run(name, func(t *testing.T) {
			c := torchtest.New(t, torch.Options{Grad: true})
			nn.Materialise(c, nn.State(row.layer), 1)
			defer nn.Free(row.layer)
			root := c.To(c.Normal_(c.Empty(torch.Float32, row.shape...), 0, 1), torch.BFloat16)
			run := func(autocast bool) (y, grad *torch.Tensor) {
				if autocast {
					defer c.SetAutocast(c.SetAutocast(torch.AutocastBFloat16))
				}
				x := c.Clone(root).SetRequiresGrad(true)
				defer x.SetGradOf(nil)
				in := c.MulScalar(x, 1) // a layer may overwrite it
				if !autocast {
					in = c.To(x, torch.Float32)
				}
				y = nn.NewCtx(c, nn.Config{Training: true, Seed: 1}).RunNamed(nn.NamedLayer{Name: "l",
					Layer: row.layer}, list{in})[0]
				c.SetSeed(2)
				upstream := c.Normal_(c.Empty(torch.Float32, y.Shape()...), 0, 1)
				c.Backward(list{y}, list{c.To(upstream, y.DType())}, false)
				for _, p := range nn.Params(row.layer) {
					if g := c.GradOf(p.Tensor()); g == nil || g.DType() != torch.Float32 {
						t.Errorf("autocast %v: the gradient of %s is %v", autocast, p.Name, g)
					}
				}
				nn.ZeroGrads(row.layer)
				return y, c.GradOf(x)
			}
			want, wantGrad := run(false)
			got, gotGrad := run(true)
			// for GPUs libtorch has other types for some
			if got.DType() != row.gives && c.Device().Kind == torch.KindCPU {
				t.Errorf("it gives %v, want %v", got, row.gives)
			}
			for what, pair := range map[string][2]*torch.Tensor{"output": {got, want},
				"gradient": {gotGrad, wantGrad}} {
				if d := remoteness(c, pair[0], pair[1]); d > tolerance {
					t.Errorf("the %s differs by %.3g of its length", what, d)
				}
			}
		})
	}
}

// remoteness is the length of a - b relative to that of b.
func remoteness(c *torch.Ctx, a, b *torch.Tensor) float64 {
	length := func(t *torch.Tensor) float64 { return math.Sqrt(torch.Item[float64](c.Sum(c.Mul(t, t)))) }
	a, b = c.To(c.Detach(a), torch.Float64), c.To(c.Detach(b), torch.Float64)
	if l := length(b); l > 1e-6 {
		return length(c.Sub(a, b)) / l
	}
	return length(a)
}

// halting counts its runs in a buffer, and ends as it is told to.
type halting struct {
	nn.Base
	runs *nn.Param
	end  func(c *nn.Ctx)
}

func newHalting() *halting {
	l := &halting{}
	l.runs = l.Buffer("runs", torch.Int64, nn.Zeros)
	return l
}

func (l *halting) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	c.NoGrad(func() { c.AddInt_(l.runs.Tensor(), 1) })
	if l.end != nil {
		l.end(c)
	}
	return c.Op("aten::tanh", x)
}

func buffersOf(m nn.Module) map[string]string {
	out := map[string]string{}
	for _, b := range nn.Buffers(m) {
		out[b.Name] = string(torch.Bytes(b.Tensor()))
	}
	return out
}

// However f ends, other than by returning, all buffers are as before; of a Checkpointed layer also
// without OrRestore, in both of its runs.
func TestBuffersAfterAFailure(t *testing.T) {
	for how, end := range map[string]func(){"panic": func() { panic("broken") }, "Goexit": runtime.Goexit} {
		for _, checkpointed := range []bool{false, true} {
			for _, recomputing := range []bool{false, true} {
				c := torchtest.New(t, torch.Options{Grad: true})
				l := newHalting()
				inner := nn.NewSequential(nn.NewLinear(3, 3), nn.NewBatchNorm1d(3, nn.BatchNormConfig{}), l)
				var model nn.Layer = inner
				if checkpointed {
					model = nn.Checkpointed(inner)
				} else if recomputing {
					continue
				}
				nn.Materialise(c, nn.State(model), 1)
				forward := func() *torch.Tensor {
					return model.Forward(nn.NewCtx(c, nn.Config{Training: true}),
						c.Normal_(c.Empty(torch.Float32, 5, 3), 0, 1))
				}
				start := buffersOf(model)
				y := forward()
				before := buffersOf(model)
				if before["1.running_mean"] == start["1.running_mean"] ||
					before["2.runs"] == start["2.runs"] {
					t.Fatal("nothing moves")
				}
				l.end = func(c *nn.Ctx) {
					if c.Recomputing == recomputing {
						end()
					}
				}
				ended := torchtest.Ended(func() {
					switch {
					case recomputing:
						c.Backward([]*torch.Tensor{c.Sum(y)}, []*torch.Tensor{nil}, false)
					case checkpointed:
						forward()
					default:
						nn.OrRestore(model, func() { forward() })
					}
				})
				if ended == "nothing" {
					t.Errorf("%s, checkpointed %v, recomputing %v: no failure", how, checkpointed,
						recomputing)
				}
				for name, value := range buffersOf(model) {
					if value != before[name] {
						t.Errorf("%s, checkpointed %v, recomputing %v: %s has changed", how, checkpointed,
							recomputing, name)
					}
				}
				l.end = nil
				nn.OrRestore(model, func() { forward() })
				if after := buffersOf(model); after["2.runs"] == before["2.runs"] {
					t.Error("a run that succeeds is undone")
				}
				nn.ZeroGrads(model)
				c.Close()
				nn.Free(model)
			}
		}
	}
}

// A wrapped layer runs again where something is trained in it or before it, and nowhere else; nor
// does anything want a gradient that need not.
func TestCheckpointsRunAgainWhereSomethingIsTrained(t *testing.T) {
	for _, row := range []struct {
		reason  string
		trained [3]bool // of three wrapped layers
		input   bool    // wants a gradient
		want    [3]int
	}{
		{"the last", [3]bool{false, false, true}, false, [3]int{1, 1, 2}},
		{"the first", [3]bool{true, false, false}, false, [3]int{2, 2, 2}},
		{"the input", [3]bool{}, true, [3]int{2, 2, 2}},
		{"nothing", [3]bool{}, false, [3]int{1, 1, 1}},
	} {
		c := torchtest.New(t, torch.Options{Grad: true})
		var runs [3]int
		model := nn.NewSequential()
		for i, trained := range row.trained {
			l := nn.NewLinear(3, 3)
			if !trained {
				l.Weight.SetTrainable(false)
				l.Bias.SetTrainable(false)
			}
			count := doing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				runs[i]++
				return c.Op("aten::tanh", x)
			})
			model.Add(strconv.Itoa(i), nn.Checkpointed(nn.NewSequential(l, count)))
		}
		nn.Materialise(c, nn.State(model), 1)
		x := c.Ones(torch.Float32, 2, 3).SetRequiresGrad(row.input)
		y := model.Forward(nn.NewCtx(c, nn.Config{Training: true}), x)
		if wants := row.want[2] == 2; y.RequiresGrad() != wants {
			t.Errorf("%s: the output requires a gradient: %v, want %v", row.reason, !wants, wants)
		} else if wants {
			c.Backward([]*torch.Tensor{y}, []*torch.Tensor{c.Op("aten::ones_like", y)}, false)
		}
		if runs != row.want {
			t.Errorf("%s: the layers ran %v times, want %v", row.reason, runs, row.want)
		}
		for i, p := range nn.State(model) {
			if p.Tensor().HasGrad() != row.trained[i/2] {
				t.Errorf("%s: %s has a gradient: %v", row.reason, p.Name, p.Tensor().HasGrad())
			}
		}
		x.SetGradOf(nil)
		nn.Free(model)
	}
}
