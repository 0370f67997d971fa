package nn_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/torch"
)

func TestConstructorsNameTheMistakeAndTheRemedy(t *testing.T) {
	for _, row := range []struct {
		want string
		f    func()
	}{
		{"Linear: in is 0; it must be at least 1", func() { nn.NewLinear(0, 1) }},
		{"Linear: out is -2; it must be at least 1", func() { nn.NewLinear(1, -2) }},
		{"Conv2d: 3 groups do not divide 4 input and 6 output channels; choose a divisor of both", func() { nn.NewConv2d(4, 6, nn.Square(3), nn.Conv2dConfig{Groups: 3}) }},
		{"Conv2d: Groups is -1; it must be at least 1", func() { nn.NewConv2d(4, 6, nn.Square(3), nn.Conv2dConfig{Groups: -1}) }},
		{"Conv2d: the kernel is 0x3; both sides must be at least 1", func() { nn.NewConv2d(4, 6, nn.Pair{0, 3}, nn.Conv2dConfig{}) }},
		{"Conv2d: Stride is 1x0; both sides must be at least 1", func() { nn.NewConv2d(4, 6, nn.Square(3), nn.Conv2dConfig{Stride: nn.Pair{1, 0}}) }},
		{"Conv2d: Padding is -1x0; both sides must be at least 0", func() { nn.NewConv2d(4, 6, nn.Square(3), nn.Conv2dConfig{Padding: nn.Pair{-1, 0}}) }},
		{"BatchNorm2d: channels is 0; it must be at least 1", func() { nn.NewBatchNorm2d(0, nn.BatchNormConfig{}) }},
		{"BatchNorm1d: Momentum is 1.5; it must be from 0 to 1", func() { nn.NewBatchNorm1d(1, nn.BatchNormConfig{Momentum: 1.5}) }},
		{"BatchNorm1d: Eps is -1; it must be positive, or 0 for 1e-5", func() { nn.NewBatchNorm1d(1, nn.BatchNormConfig{Eps: -1}) }},
		{"LayerNorm: the shape is empty; give the sizes of the last dimensions", func() { nn.NewLayerNorm(nil, nn.LayerNormConfig{}) }},
		{"LayerNorm: a size is 0; it must be at least 1", func() { nn.NewLayerNorm([]int64{4, 0}, nn.LayerNormConfig{}) }},
		{"Embedding: PaddingIdx is 5; it must be one of the 5 rows, from 0 to 4", func() { nn.NewEmbedding(5, 2, nn.EmbeddingConfig{PaddingIdx: new(int64(5))}) }},
		{"Dropout: p is 1.01; it must be from 0 to 1", func() { nn.NewDropout(1.01) }},
		{"Dropout: p is NaN; it must be from 0 to 1", func() { nn.NewDropout(math.NaN()) }},
		{"MaxPool2d: Padding is 2x0; it must be at most half the kernel, which is 3x3", func() { nn.NewMaxPool2d(nn.Square(3), nn.MaxPool2dConfig{Padding: nn.Pair{2, 0}}) }},
		{"AvgPool2d: the kernel is 0x0; both sides must be at least 1", func() { nn.NewAvgPool2d(nn.Pair{}, nn.AvgPool2dConfig{}) }},
		{"AdaptiveAvgPool2d: the size is 0x1; both sides must be at least 1", func() { nn.NewAdaptiveAvgPool2d(nn.Pair{0, 1}) }},
		{"Upsample: Size is [0 0] and Scale is [0 0]; give one of them", func() { nn.NewUpsample(nn.UpsampleConfig{}) }},
		{"Upsample: Size is [2 2] and Scale is [2 2]; give one of them", func() { nn.NewUpsample(nn.UpsampleConfig{Size: nn.Square(2), Scale: [2]float64{2, 2}}) }},
		{"Upsample: AlignCorners is for Bilinear only", func() { nn.NewUpsample(nn.UpsampleConfig{Size: nn.Square(2), AlignCorners: true}) }},
		{"SelfAttention: dim is 10, which 4 heads do not divide; choose a multiple of the heads", func() { nn.NewCausalSelfAttention(10, 4) }},
		{"SelfAttention: the mask is 3; it must be NoMask, CausalMask or GivenMask", func() { nn.NewSelfAttention(8, 2, 3) }},
		{"Conv1d: 3 groups do not divide 4 input and 6 output channels; choose a divisor of both", func() { nn.NewConv1d(4, 6, 3, nn.Conv1dConfig{Groups: 3}) }},
		{"Conv1d: the kernel is 0; it must be at least 1", func() { nn.NewConv1d(4, 6, 0, nn.Conv1dConfig{}) }},
		{"Conv1d: Stride is -1; it must be at least 1", func() { nn.NewConv1d(4, 6, 3, nn.Conv1dConfig{Stride: -1}) }},
		{"Conv1d: Padding is -1; it must be at least 0", func() { nn.NewConv1d(4, 6, 3, nn.Conv1dConfig{Padding: -1}) }},
		{"ConvTranspose2d: in is 0; it must be at least 1", func() { nn.NewConvTranspose2d(0, 6, nn.Square(2), nn.ConvTranspose2dConfig{}) }},
		{"ConvTranspose2d: OutputPadding is 0x2; it must be less than the stride 2x2 or the dilation 1x1", func() {
			nn.NewConvTranspose2d(4, 6, nn.Square(2), nn.ConvTranspose2dConfig{Stride: nn.Square(2), OutputPadding: nn.Pair{0, 2}})
		}},
		{"GroupNorm: 3 groups do not divide 4 channels; choose a divisor", func() { nn.NewGroupNorm(3, 4, nn.GroupNormConfig{}) }},
		{"GroupNorm: Eps is -1; it must be positive, or 0 for 1e-5", func() { nn.NewGroupNorm(2, 4, nn.GroupNormConfig{Eps: -1}) }},
		{"RMSNorm: the shape is empty; give the sizes of the last dimensions", func() { nn.NewRMSNorm(nil, nn.RMSNormConfig{}) }},
		{"RMSNorm: Eps is -1; it must be positive, or 0 for that of float32", func() { nn.NewRMSNorm([]int64{4}, nn.RMSNormConfig{Eps: -1}) }},
		{"Huber: delta is 0; it must be positive", func() { nn.Huber(0) }},
		{"SelfAttention: heads is 0; it must be at least 1", func() { nn.NewTransformerBlock(8, 0, nn.TransformerConfig{}) }},
		{"Bottleneck: stride is 0; it must be at least 1", func() { nn.NewBottleneck(8, 2, 0) }},
		{"CrossEntropy: LabelSmoothing is -0.1; it must be from 0 to 1", func() { nn.CrossEntropy().LabelSmoothing(-0.1) }},
	} {
		if got := recovered(row.f); got != "nn: "+row.want {
			t.Errorf("got  %q\nwant %q", got, "nn: "+row.want)
		}
	}
}

func TestDropoutDropsInTrainingOnly(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	x := c.Ones(torch.Float32, 10000)
	if l := nn.NewDropout(0.3); l.Forward(nn.NewCtx(c, nn.Config{}), x) != x {
		t.Error("evaluation does not return the input itself")
	}
	if l := nn.NewDropout(0); l.Forward(nn.NewCtx(c, nn.Config{Training: true}), x) != x {
		t.Error("with p = 0 training does not return the input itself")
	}
	kept := 0
	for _, v := range torch.Values[float32](nn.NewDropout(0.3).Forward(nn.NewCtx(c, nn.Config{Training: true}), x)) {
		switch {
		case v == 0:
		case math.Abs(float64(v)-1/0.7) < 1e-6:
			kept++
		default:
			t.Fatalf("1 became %v, want 0 or 1/0.7", v)
		}
	}
	if kept < 6770 || kept > 7230 { // five standard deviations of sqrt(10000 * 0.3 * 0.7)
		t.Errorf("%d of 10000 are left, want about 7000", kept)
	}
	for _, v := range torch.Values[float32](nn.NewDropout(1).Forward(nn.NewCtx(c, nn.Config{Training: true}), x)) {
		if v != 0 {
			t.Fatalf("with p = 1 a %v is left", v)
		}
	}
}

func TestInPlaceLayersSaySo(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	n := nn.NewCtx(c, nn.Config{})
	for _, row := range []struct {
		reason string
		layer  nn.Layer
		want   bool
	}{
		{"ReLU", nn.NewReLU(), false},
		{"ReLU in place", nn.NewReLUInPlace(), true},
		{"a Sequential that begins with it", nn.NewSequential(nn.NewReLUInPlace(), nn.NewTanh()), true},
		{"a Sequential that begins with something else", nn.NewSequential(nn.NewTanh(), nn.NewReLUInPlace()), false},
		{"nothing", nn.NewSequential(), false},
	} {
		x := torch.From(c, []float32{-1, 1})
		row.layer.Forward(n, x)
		changed := !slices.Equal(torch.Values[float32](x), []float32{-1, 1})
		if says := row.layer.(nn.InPlace).OverwritesInput(); says != row.want || changed != row.want {
			t.Errorf("%s: says %v and does %v, want %v", row.reason, says, changed, row.want)
		}
	}
}

func TestCausalAttentionDoesNotSeeTheFuture(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	l := nn.NewCausalSelfAttention(4, 2)
	nn.Materialise(c, nn.State(l), 1)
	defer nn.Free(l)
	run := func(last float32) []float32 {
		y := l.Forward(nn.NewCtx(c, nn.Config{}), torch.From(c, []float32{1, 2, 3, 4, 5, 6, 7, 8, last, 1, 1, 1}, 1, 3, 4))
		return torch.Values[float32](y)
	}
	a, b := run(0), run(9)
	if !slices.Equal(a[:8], b[:8]) || slices.Equal(a[8:], b[8:]) {
		t.Errorf("with another third token %v became %v", a, b)
	}
}

func TestShapeErrorsAreLibtorchs(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	n := nn.NewCtx(c, nn.Config{})
	attention := nn.NewCausalSelfAttention(4, 2)
	linear := nn.NewLinear(3, 2)
	for _, l := range []nn.Layer{attention, linear} {
		nn.Materialise(c, nn.State(l), 1)
		defer nn.Free(l)
	}
	for _, row := range []struct {
		reason, want string
		f            func()
	}{
		{"features", "mat1 and mat2 shapes cannot be multiplied (5x4 and 3x2)", func() { linear.Forward(n, c.Ones(torch.Float32, 5, 4)) }},
		{"a sequence without a batch", "shape '[5, 4, 2, 2]' is invalid for input of size 20", func() { attention.Forward(n, c.Ones(torch.Float32, 5, 4)) }},
		{"classes", "out of bounds", func() {
			nn.CrossEntropy().Forward(n, c.Ones(torch.Float32, 2, 3), torch.From(c, []int64{0, 3}))
		}},
		{"a target that would be broadcast", "output and target must have one shape", func() {
			nn.MSE().Forward(n, c.Ones(torch.Float32, 4, 1), c.Ones(torch.Float32, 4))
		}},
		{"the same for binary targets", "float32[4,1], float32[4]", func() {
			nn.BCEWithLogits().Forward(n, c.Ones(torch.Float32, 4, 1), c.Ones(torch.Float32, 4))
		}},
	} {
		if losesTheGPU(c, row.want) {
			continue
		}
		if err := torch.Try(row.f); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: got %v, want %q in it", row.reason, err, row.want)
		}
	}
}

// losesTheGPU says whether an error is one that a kernel of a GPU finds, after which nothing else runs on it.
func losesTheGPU(c *torch.Ctx, text string) bool {
	return c.Device().Kind == torch.KindCUDA && strings.Contains(text, "out of bounds")
}

// A pipe relies on this: means of micro-batches weighed by their rows, and plain sums, are those of
// the whole batch.
func TestLossesOfPartsAddUp(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	n := nn.NewCtx(c, nn.Config{})
	logits := c.Normal_(c.Empty(torch.Float32, 6, 3), 0, 1)
	class, number := torch.From(c, []int64{0, 2, 1, 1, 0, 2}), c.Uniform_(c.Empty(torch.Float32, 6, 3), 0, 1)
	for _, row := range []struct {
		name   string
		loss   nn.Loss
		target *torch.Tensor
		want   torch.Reduction
	}{
		{"cross entropy", nn.CrossEntropy().LabelSmoothing(0.1), class, torch.ReduceMean},
		{"cross entropy, sum", nn.CrossEntropy().Sum().Weight([]float32{1, 2, 3}).IgnoreIndex(1), class, torch.ReduceSum},
		{"mse", nn.MSE(), number, torch.ReduceMean},
		{"mse, sum", nn.MSE().Sum(), number, torch.ReduceSum},
		{"bce", nn.BCEWithLogits().PosWeight([]float32{1, 2, 3}), number, torch.ReduceMean},
		{"bce, sum", nn.BCEWithLogits().Sum(), number, torch.ReduceSum},
	} {
		part := func(from, rows int64) float64 {
			y := row.loss.Forward(n, c.Narrow(logits, 0, from, rows), c.Narrow(row.target, 0, from, rows))
			weight := 1.0
			if row.loss.Reduction() == torch.ReduceMean {
				weight = float64(rows) / 6
			}
			return weight * float64(torch.Item[float32](y))
		}
		if row.loss.Reduction() != row.want {
			t.Errorf("%s: reduction %v, want %v", row.name, row.loss.Reduction(), row.want)
		}
		if whole, parts := part(0, 6), part(0, 1)+part(1, 3)+part(4, 2); math.Abs(whole-parts) > 1e-5*math.Abs(whole) {
			t.Errorf("%s: the whole is %v, its parts are %v", row.name, whole, parts)
		}
	}
}

// libtorch 1.13's backward of the exact GELU returns whatever the memory held when the gradient
// lies in another order than the input. Ours must not.
func TestGELUGradientDoesNotDependOnLayout(t *testing.T) {
	for _, l := range []nn.Layer{nn.NewGELU(), nn.NewGELUTanh()} {
		c := torchtest.New(t, torch.Options{Grad: true})
		x := c.Normal_(c.Empty(torch.Float32, 8, 8), 0, 1).SetRequiresGrad(true)
		g := c.Normal_(c.Empty(torch.Float32, 8, 8), 0, 1)
		transposed := c.Transpose(c.Contiguous(c.Transpose(g, 0, 1)), 0, 1)
		var want []float32
		for i, grad := range []*torch.Tensor{g, transposed, transposed} {
			for range 50 {
				c.Fill_(c.Empty(torch.Float32, 8, 8), 1e30).Free() // what the memory holds before
			}
			n := nn.NewCtx(c, nn.Config{})
			c.Backward([]*torch.Tensor{l.Forward(n, x)}, []*torch.Tensor{grad}, false)
			got := torch.Values[float32](c.GradOf(x))
			x.SetGradOf(nil)
			if i == 0 {
				want = got
			}
			for k := range got {
				if got[k] != want[k] {
					t.Fatalf("element %d: %v, with a contiguous gradient %v", k, got[k], want[k])
				}
			}
		}
		c.Close()
	}
}

// The targets that losses make for themselves are of the types and shapes that go with an output.
func TestLossesMakeTargets(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	for _, k := range []struct {
		loss  nn.Loss
		shape []int64
		want  string
	}{
		{nn.CrossEntropy(), []int64{4, 10}, "int64[4]"},
		{nn.CrossEntropy(), []int64{4, 10, 3, 2}, "int64[4,3,2]"},
		{nn.CrossEntropy(), []int64{10}, "int64[]"},
		{nn.MSE(), []int64{4, 1}, "float32[4,1]"},
		{nn.BCEWithLogits(), []int64{4, 2}, "float32[4,2]"},
	} {
		outputs := []*torch.Tensor{c.Ones(torch.Float32, k.shape...)}
		targets := k.loss.(nn.Targeted).Targets(c, outputs)
		if len(targets) != 1 || targets[0].String() != k.want {
			t.Errorf("%T for %v: %v, want %s", k.loss, k.shape, torch.Describe(targets), k.want)
		}
		nn.RunLoss(nn.NewCtx(c, nn.Config{}), k.loss, outputs, targets)
	}
}

// The mean of the losses of no rows is not a number: it is refused, as an operator's failure. Their
// sum is 0.
func TestLossesOfNoRows(t *testing.T) {
	c := nn.NewCtx(torchtest.New(t, torch.Options{}), nn.Config{Training: true})
	same := func() (y, target *torch.Tensor) { return c.Zeros(torch.Float32, 0, 3), c.Zeros(torch.Float32, 0, 3) }
	classes := func() (y, target *torch.Tensor) { return c.Zeros(torch.Float32, 0, 3), c.Zeros(torch.Int64, 0) }
	for name, row := range map[string]struct {
		mean, sum nn.Loss
		of        func() (y, target *torch.Tensor)
	}{
		"mse":           {nn.MSE(), nn.MSE().Sum(), same},
		"cross entropy": {nn.CrossEntropy(), nn.CrossEntropy().Sum(), classes},
		"bce":           {nn.BCEWithLogits(), nn.BCEWithLogits().Sum(), same},
	} {
		y, target := row.of()
		if err := torch.Try(func() { row.mean.Forward(c, y, target) }); err == nil || !strings.Contains(err.Error(), "(float32[0,3], ") || !strings.Contains(err.Error(), "the mean over no rows is no number; a step needs at least one row") {
			t.Errorf("%s: got %v", name, err)
		}
		if got := torch.Item[float32](row.sum.Forward(c, y, target)); got != 0 {
			t.Errorf("%s: the sum is %v", name, got)
		}
	}
}

// What libtorch would take in silence, or refuse without saying what was wanted.
func TestLayersRefuseInputsOfOtherSizes(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	n := nn.NewCtx(c, nn.Config{})
	ones := func(shape ...int64) *torch.Tensor { return c.Ones(torch.Float32, shape...) }
	masked := nn.NewSelfAttention(4, 2, nn.GivenMask)
	nn.Materialise(c, nn.State(masked), 1)
	defer nn.Free(masked)
	classes := func(shape ...int64) *torch.Tensor { return c.Zeros(torch.Int64, shape...) }
	for _, row := range []struct {
		want string
		run  func()
	}{
		{"expected an input of [N, 4, ...]", func() { nn.NewGroupNorm(2, 4, nn.GroupNormConfig{NoAffine: true}).Forward(n, ones(2, 6, 3)) }},
		{"expected more than 1 value per group and sample; use fewer groups or larger inputs", func() { nn.NewGroupNorm(4, 4, nn.GroupNormConfig{NoAffine: true}).Forward(n, ones(2, 4)) }},
		{"expected an input whose last dimensions are [3 4]", func() { nn.NewRMSNorm([]int64{3, 4}, nn.RMSNormConfig{NoAffine: true}).Forward(n, ones(2, 4)) }},
		{"expected a mask after the 2 sequences of 3 tokens: torch.Bool [3 3], [2 3 3] or [2 1 3]", func() { masked.ForwardTuple(n, []*torch.Tensor{ones(2, 3, 4)}) }},
		{"expected a mask after", func() { masked.ForwardTuple(n, []*torch.Tensor{ones(2, 3, 4), ones(3, 3)}) }},
		{"expected a mask after", func() { masked.ForwardTuple(n, []*torch.Tensor{ones(2, 3, 4), c.Ones(torch.Bool, 3, 4)}) }},
		{"output and target must have one shape", func() { nn.L1().Forward(n, ones(2, 1), ones(2)) }},
		{"output and target must have one shape", func() { nn.Huber(1).Forward(n, ones(2, 1), ones(2)) }},
		{"the mean over no rows is no number", func() { nn.L1().Forward(n, ones(0, 1), ones(0, 1)) }},
		{"the mean over no rows is no number", func() { nn.Huber(1).Forward(n, ones(0, 1), ones(0, 1)) }},
		{"the mean over no rows is no number", func() { nn.NLL().Forward(n, ones(0, 3), classes(0)) }},
		{"Target 3 is out of bounds", func() { nn.NLL().Forward(n, ones(1, 3), c.AddInt_(classes(1), 3)) }},
		{"aten::conv1d", func() { run(c, n, nn.NewConv1d(2, 3, 3, nn.Conv1dConfig{}), ones(1, 4, 8)) }},
		{"aten::conv_transpose2d", func() {
			run(c, n, nn.NewConvTranspose2d(2, 3, nn.Square(2), nn.ConvTranspose2dConfig{}), ones(1, 4, 8, 8))
		}},
	} {
		if losesTheGPU(c, row.want) {
			continue
		}
		n = nn.NewCtx(c, nn.Config{})
		if err := torch.Try(row.run); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("got %v, want %q in it", err, row.want)
		}
	}
}

// run materialises a layer, runs it and frees it.
func run(c *torch.Ctx, n *nn.Ctx, l nn.Layer, x *torch.Tensor) {
	nn.Materialise(c, nn.State(l), 1)
	defer nn.Free(l)
	l.Forward(n, x)
}

// A mask of no token is no mask, and one for all sequences the same as one for each, to the bit.
func TestMasksOfAttention(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	n := nn.NewCtx(c, nn.Config{})
	x := c.Normal_(c.Empty(torch.Float32, 2, 4, 6), 0, 1)
	causal := c.Triu(c.Ones(torch.Bool, 4, 4), 1)
	attend := func(kind nn.AttentionMask, mask ...*torch.Tensor) []float32 {
		s := nn.NewSelfAttention(6, 3, kind)
		nn.Materialise(c, nn.State(s), 1)
		defer nn.Free(s)
		ys := s.ForwardTuple(n, append([]*torch.Tensor{x}, mask...))
		if len(ys) != 1+len(mask) {
			t.Errorf("mask %d: a tuple of %d comes out", kind, len(ys))
		}
		return torch.Values[float32](ys[0])
	}
	all, before := attend(nn.NoMask), attend(nn.CausalMask)
	if slices.Equal(all, before) {
		t.Error("the causal mask changes nothing")
	}
	for what, row := range map[string]struct{ got, want []float32 }{
		"nothing hidden":        {attend(nn.GivenMask, c.Zeros(torch.Bool, 4, 4)), all},
		"the future":            {attend(nn.GivenMask, causal), before},
		"the future, each":      {attend(nn.GivenMask, c.Contiguous(c.Expand(causal, 2, 4, 4))), before},
		"nothing hidden, a row": {attend(nn.GivenMask, c.Zeros(torch.Bool, 2, 1, 4)), all},
	} {
		if !slices.Equal(row.got, row.want) {
			t.Errorf("%s: the results differ", what)
		}
	}
}
