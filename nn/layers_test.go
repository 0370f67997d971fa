package nn_test

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/torch"
)

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
	for _, v := range torch.Values[float32](nn.NewDropout(0.3).Forward(nn.NewCtx(c,
		nn.Config{Training: true}), x)) {
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
	for _, v := range torch.Values[float32](nn.NewDropout(1).Forward(nn.NewCtx(c,
		nn.Config{Training: true}), x)) {
		if v != 0 {
			t.Fatalf("with p = 1 a %v is left", v)
		}
	}
}

// losesTheGPU says whether an error is one that a kernel of a GPU finds, after which nothing else runs on it.
func losesTheGPU(c *torch.Ctx, text string) bool {
	return c.Device().Kind == torch.KindCUDA && strings.Contains(text, "out of bounds")
}

// libtorch 1.13's backward of the exact GELU returns whatever the memory held when the gradient
// lies in another order than the input. Ours must not.
func TestGELUGradientDoesNotDependOnLayout(t *testing.T) {
	for _, l := range []nn.Layer{nn.NewGELU(), nn.NewGELUTanh()} {
		c := torchtest.New(t, torch.Options{Grad: true})
		x := c.Normal_(c.Empty(torch.Float32, 8, 8), 0, 1).SetRequiresGrad(true)
		g := c.Normal_(c.Empty(torch.Float32, 8, 8), 0, 1)
		transposed := c.Transpose(c.Op("aten::contiguous", c.Transpose(g, 0, 1)), 0, 1)
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

// What libtorch would take in silence, or refuse without saying what was wanted.
func TestLayersRefuseInputsOfOtherSizes(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	n := nn.NewCtx(c, nn.Config{})
	ones := func(shape ...int64) *torch.Tensor { return c.Ones(torch.Float32, shape...) }
	classes := func(shape ...int64) *torch.Tensor { return c.Zeros(torch.Int64, shape...) }
	for _, row := range []struct {
		want string
		run  func()
	}{
		{"expected an input of [N, 4, ...]", func() {
			nn.NewGroupNorm(2, 4, nn.NormConfig{NoAffine: true}).Forward(n, ones(2, 6, 3))
		}},
		{"expected more than 1 value per group and sample", func() {
			nn.NewGroupNorm(4, 4, nn.NormConfig{NoAffine: true}).Forward(n, ones(2, 4))
		}},
		{"expected an input whose last dimensions are [3 4]", func() {
			nn.NewRMSNorm([]int64{3, 4}, nn.NormConfig{NoAffine: true}).Forward(n, ones(2, 4))
		}},
		{"output and target must have one shape", func() { nn.L1().Forward(n, ones(2, 1), ones(2)) }},
		{"output and target must have one shape", func() { nn.Huber(1).Forward(n, ones(2, 1), ones(2)) }},
		{"the mean over no rows is no number", func() { nn.L1().Forward(n, ones(0, 1), ones(0, 1)) }},
		{"the mean over no rows is no number", func() { nn.Huber(1).Forward(n, ones(0, 1), ones(0, 1)) }},
		{"the mean over no rows is no number", func() { nn.NLL().Forward(n, ones(0, 3), classes(0)) }},
		{"Target 3 is out of bounds", func() { nn.NLL().Forward(n, ones(1, 3), c.AddInt_(classes(1), 3)) }},
		{"aten::conv1d", func() { run(c, n, nn.NewConv1d(2, 3, 3, nn.Conv1dConfig{}), ones(1, 4, 8)) }},
		{"aten::conv_transpose2d", func() {
			run(c, n, nn.NewConvTranspose2d(2, 3, nn.Square(2), nn.ConvConfig{}), ones(1, 4, 8, 8))
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

// result is what a forward and backward of a layer gave, as values.
type result struct{ output, gradX, gradWeight, gradBias []float32 }

func runBatchNorm(c *torch.Ctx, b *nn.BatchNorm, o nn.Config) result {
	nn.ZeroGrads(b)
	c.SetSeed(3)
	x := c.Normal_(c.Empty(torch.Float32, 4, 3, 2, 2), 1, 2).SetRequiresGrad(true)
	grad := c.Normal_(c.Empty(torch.Float32, 4, 3, 2, 2), 0, 1)
	y := b.Forward(nn.NewCtx(c, o), x)
	c.Backward([]*torch.Tensor{y}, []*torch.Tensor{grad}, false)
	defer x.SetGradOf(nil)
	return result{torch.Values[float32](y), torch.Values[float32](c.GradOf(x)),
		torch.Values[float32](c.GradOf(b.Weight.Tensor())), torch.Values[float32](c.GradOf(b.Bias.Tensor()))}
}

func (r result) equal(o result) bool {
	return slices.Equal(r.output, o.output) && slices.Equal(r.gradX, o.gradX) &&
		slices.Equal(r.gradWeight, o.gradWeight) && slices.Equal(r.gradBias, o.gradBias)
}

func running(b *nn.BatchNorm) []float32 {
	return slices.Concat(torch.Values[float32](b.RunningMean.Tensor()),
		torch.Values[float32](b.RunningVar.Tensor()),
		[]float32{float32(torch.Item[int64](b.NumBatchesTracked.Tensor()))})
}

// torchgpipe's first release moved the running statistics of a checkpointed layer twice for each
// micro-batch, in the forward and in the recomputation.
func TestRecomputationRepeatsTheBitsAndMovesNothing(t *testing.T) {
	c := torchtest.New(t, torch.Options{Grad: true})
	b := nn.NewBatchNorm2d(3, nn.BatchNormConfig{})
	nn.Materialise(c, nn.State(b), 1)
	first := runBatchNorm(c, b, nn.Config{Training: true})
	moved := running(b)
	if moved[6] != 1 || moved[0] == 0 || moved[3] == 1 {
		t.Errorf("after one micro-batch the running statistics are %v", moved)
	}
	again := runBatchNorm(c, b, nn.Config{Training: true, Recomputing: true})
	if !first.equal(again) {
		t.Error("the recomputation gave other bits")
	}
	if !slices.Equal(running(b), moved) {
		t.Errorf("the recomputation moved the running statistics from %v to %v", moved, running(b))
	}
	nn.Free(b)
}

func TestRunningStatisticsMoveOncePerMicroBatch(t *testing.T) {
	for _, row := range []struct {
		reason string
		o      nn.BatchNormConfig
		want   []float64 // running mean after each of three micro-batches with means 1, 4 and 10
	}{
		{"the default momentum is 0.1", nn.BatchNormConfig{}, []float64{0.1, 0.49, 1.441}},
		{"a momentum", nn.BatchNormConfig{Momentum: 0.5}, []float64{0.5, 2.25, 6.125}},
	} {
		c := torchtest.New(t, torch.Options{Grad: true})
		b := nn.NewBatchNorm1d(1, row.o)
		nn.Materialise(c, nn.State(b), 1)
		for i, mean := range []float32{1, 4, 10} {
			b.Forward(nn.NewCtx(c, nn.Config{Training: true, MicroBatch: i, MicroBatches: 3}),
				torch.From(c, []float32{mean - 1, mean + 1}, 2, 1))
			got := torch.Item[float32](b.RunningMean.Tensor())
			if math.Abs(float64(got)-row.want[i]) > 1e-6 ||
				torch.Item[int64](b.NumBatchesTracked.Tensor()) != int64(i+1) {
				t.Errorf("%s: after micro-batch %d the running mean is %v, want %v", row.reason, i, got,
					row.want[i])
			}
		}
		if b.RunningMean.Tensor().RequiresGrad() || b.RunningVar.Tensor().RequiresGrad() {
			t.Errorf("%s: a running statistic is part of the graph", row.reason)
		}
		nn.Free(b)
	}
}

func TestDropout2dDropsWholeChannelsInTrainingOnly(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	x := c.Ones(torch.Float32, 100, 100, 2, 2)
	if nn.NewDropout2d(0.3).Forward(nn.NewCtx(c, nn.Config{}), x) != x {
		t.Error("evaluation does not return the input itself")
	}
	if nn.NewDropout2d(0).Forward(nn.NewCtx(c, nn.Config{Training: true}), x) != x {
		t.Error("with p = 0 training does not return the input itself")
	}
	run := func(p float64, seed uint64) []float32 {
		s := nn.NewSequential(nn.NewDropout2d(p))
		return torch.Values[float32](s.Forward(nn.NewCtx(c, nn.Config{Training: true, Seed: seed}), x))
	}
	values, kept := run(0.3, 1), 0
	for i := 0; i < len(values); i += 4 {
		channel := values[i : i+4]
		if channel[0] != channel[1] || channel[0] != channel[2] || channel[0] != channel[3] {
			t.Fatalf("a channel of ones became %v", channel)
		}
		switch {
		case channel[0] == 0:
		case math.Abs(float64(channel[0])-1/0.7) < 1e-6:
			kept++
		default:
			t.Fatalf("1 became %v, want 0 or 1/0.7", channel[0])
		}
	}
	if kept < 6770 || kept > 7230 { // five standard deviations of sqrt(10000 * 0.3 * 0.7)
		t.Errorf("%d of 10000 channels are left, want about 7000", kept)
	}
	if !slices.Equal(values, run(0.3, 1)) || slices.Equal(values, run(0.3, 2)) {
		t.Error("what is dropped does not depend on the seed, or not on the seed alone")
	}
	if slices.Max(run(1, 1)) != 0 {
		t.Error("with p = 1 something is left")
	}
	err := torch.Try(func() {
		nn.NewDropout2d(0.5).Forward(nn.NewCtx(c, nn.Config{Training: true}), c.Ones(torch.Float32, 2, 3))
	})
	if err == nil || !strings.Contains(err.Error(), "expected an input of 4 dimensions, [N, C, H, W], "+
		"got 2") {
		t.Errorf("two dimensions: got %v", err)
	}
}

type initCase struct {
	Name, Layer  string
	Args         json.RawMessage
	Param        string
	Shape        []int64
	Distribution string
	Bound        float64 // uniform: from -bound to bound
	Mean, Std    float64 // normal
	Value        float64 // constant
	Sample       struct {
		Count               int
		Min, Max, Mean, Std float64
	}
}

// Our generator draws other numbers than PyTorch's, from the same distribution: each case is
// compared with what the distribution says and with a sample that PyTorch drew. A mean of n draws
// has a standard deviation of std/sqrt(n), and a standard deviation one of less than std/sqrt(n);
// five of these are allowed.
func TestInitialisationsAreThoseOfPyTorch(t *testing.T) {
	var list []initCase
	readJSON(t, "init.json", &list)
	if len(list) != 17 {
		t.Errorf("%d cases, want 17", len(list))
	}
	for _, k := range list {
		t.Run(k.Name, func(t *testing.T) {
			c := torchtest.New(t, torch.Options{})
			layer := buildLayer(t, k.Layer, k.Args)
			nn.Materialise(c, nn.State(layer), 7)
			defer nn.Free(layer)
			i := slices.IndexFunc(nn.State(layer), func(p nn.NamedParam) bool { return p.Name == k.Param })
			if i < 0 {
				t.Fatalf("there is no %s", k.Param)
			}
			p := nn.State(layer)[i]
			if !slices.Equal(p.Shape(), k.Shape) {
				t.Errorf("shape %v, want %v", p.Shape(), k.Shape)
			}
			k.check(t, torch.Values[float32](p.Tensor()))
		})
	}
}

func (k initCase) check(t *testing.T, values []float32) {
	mean, std, low, high := statistics(values)
	wantMean, wantStd := k.Mean, k.Std
	switch k.Distribution {
	case "constant":
		if low != k.Value || high != k.Value {
			t.Errorf("values from %v to %v, want %v", low, high, k.Value)
		}
		return
	case "uniform":
		wantMean, wantStd = 0, k.Bound/math.Sqrt(3)
		// The largest of n draws is below 1 - 12/n of the bound about six times in a million.
		reach := k.Bound * (1 - 24/float64(len(values)))
		if low < -k.Bound || high > k.Bound || low > -reach || high < reach {
			t.Errorf("values from %v to %v, want them to fill [%v, %v]", low, high, -k.Bound, k.Bound)
		}
	}
	spread := 5 * wantStd / math.Sqrt(float64(len(values)))
	if math.Abs(mean-wantMean) > spread || math.Abs(std-wantStd) > spread {
		t.Errorf("mean %v and standard deviation %v, want %v and %v within %v", mean, std, wantMean,
			wantStd, spread)
	}
	if math.Abs(mean-k.Sample.Mean) > 2*spread || math.Abs(std-k.Sample.Std) > 2*spread {
		t.Errorf("mean %v and standard deviation %v, PyTorch drew %v and %v", mean, std, k.Sample.Mean,
			k.Sample.Std)
	}
}

func statistics(values []float32) (mean, std, low, high float64) {
	low, high = math.Inf(1), math.Inf(-1)
	for _, v := range values {
		mean += float64(v) / float64(len(values))
		low, high = min(low, float64(v)), max(high, float64(v))
	}
	for _, v := range values {
		std += (float64(v) - mean) * (float64(v) - mean) / float64(len(values))
	}
	return mean, math.Sqrt(std), low, high
}

// PyTorch initialises the padding row of an embedding to zeros.
func TestPaddingRowStartsAsZeros(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	l := nn.NewEmbedding(4, 3, nn.EmbeddingConfig{PaddingIdx: new(int64(2))})
	nn.Materialise(c, nn.State(l), 1)
	defer nn.Free(l)
	for i, v := range torch.Values[float32](l.Weight.Tensor()) {
		if (v == 0) != (i/3 == 2) {
			t.Errorf("row %d holds %v", i/3, v)
		}
	}
}

// What layers and losses compute on CUDA is what PyTorch computes.
func TestParityAsOnCUDA(t *testing.T) {
	defer nn.AsOnCUDA()()
	var list []parityCase
	readJSON(t, "cases.json", &list)
	for _, p := range list {
		if !slices.Contains([]string{"CrossEntropyLoss", "NLLLoss", "AdaptiveAvgPool2d", "Upsample"},
			p.Layer) {
			continue
		}
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

// Contexts of one torch.Ctx without a seed of their own drop other elements, and the same in another run.
func TestDropoutOfALoopOfOnesOwn(t *testing.T) {
	steps := func() (masks []string) {
		c := torchtest.New(t, torch.Options{Seed: 3})
		for range 3 {
			n := nn.NewCtx(c, nn.Config{Training: true})
			masks = append(masks, fmt.Sprint(torch.Values[float32](n.Run(n.Ones(torch.Float32, 40),
				nn.NewSequential(nn.NewDropout(0.5))))))
		}
		return masks
	}
	if got := steps(); got[0] == got[1] || got[1] == got[2] || !slices.Equal(got, steps()) {
		t.Errorf("masks %v, and in another run %v", got, steps())
	}
}
