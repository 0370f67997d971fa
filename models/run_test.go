package models_test

import (
	"bytes"
	"context"
	"runtime"
	"slices"
	"strconv"
	"testing"

	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

type sized struct {
	name string
	o    models.Options
}

// small are versions of the models that run in a blink.
var small = []sized{
	{"mlp", models.Options{Size: 4, Width: 8, Dropout: 0.3}},
	{"resnet20", models.Options{Channels: 1, Width: 4}},
	{"resnet56", models.Options{Classes: 7, Width: 4}},
	{"resnet18", models.Options{Classes: 5}},
	{"resnet50", models.Options{Classes: 5}},
	{"resnext50_32x4d", models.Options{Classes: 5}},
	{"resnet1001", models.Options{Width: 4, Depth: 2}},
	{"vgg11_bn", models.Options{Classes: 5, Width: 16, Dropout: 0.3}},
	{"densenet121", models.Options{Classes: 5, Width: 8, Dropout: 0.2}},
	{"inception_v3", models.Options{Classes: 5, Size: 75}},
	{"googlenet", models.Options{Classes: 5}},
	{"gpt2", models.Options{Width: 8, Heads: 2, Context: 6, Depth: 2, Classes: 200}},
	{"vit_b_16", models.Options{Classes: 5, Width: 8, Heads: 2, Depth: 2, Size: 32, Dropout: 0.2}},
	{"gpt", models.Options{Width: 8, Heads: 2, Context: 6, Depth: 2, Dropout: 0.2}},
	// 21, 10 and 5: the last level is filled up
	{"unet", models.Options{Classes: 2, Convolutions: 2, Width: 4, Depth: 2, Size: 21}},
	// 8 filters are single channels, whose scale the next norm undoes
	{"amoebanetd", models.Options{Classes: 5, Width: 16, Depth: 3, Size: 64}},
}

// input makes two samples and the shape that their logits must have.
func input(t *testing.T, c *torch.Ctx, name string, o models.Options) (x *torch.Tensor, want []int64) {
	info := must.Get(models.Describe(name))(t)
	or := func(n, other int) int64 {
		if n == 0 {
			n = other
		}
		return int64(n)
	}
	classes := or(o.Classes, info.Defaults.Classes)
	c.SetSeed(1)
	if info.Kind == models.Text {
		return torch.From(c, []int64{0, 1, 155, 3, 7, 7, 9, 0, 65, 66}, 2, 5), []int64{2, classes, 5}
	}
	size := or(o.Size, 32)
	want = []int64{2, classes}
	if info.Kind == models.Segmentation {
		want = append(want, size, size)
	}
	return c.Normal_(c.Empty(torch.Float32, 2, or(o.Channels, info.Defaults.Channels), size, size), 0, 1),
		want
}

func materialise(t *testing.T, c *torch.Ctx, s *nn.Sequential) {
	nn.Materialise(c, nn.State(s), 1)
	t.Cleanup(func() { nn.Free(s) })
}

// stir lets a vit's head start from values that are not zero, with which nothing before it has a
// gradient.
func stir(s *nn.Sequential) {
	for _, p := range nn.Params(s) {
		if p.Name == "heads.head.weight" {
			p.SetInit(nn.Normal(0.5))
		}
	}
}

func TestForwardShapes(t *testing.T) {
	for _, name := range models.Names() {
		t.Run(name, func(t *testing.T) {
			c := torchtest.New(t, torch.Options{})
			o := map[string]models.Options{ // where the default wants large images, or is large
				"mlp":          {Size: 28},
				"resnet1001":   {Depth: 1},
				"inception_v3": {Size: 75},
				"amoebanetd":   {Width: 16, Size: 64},
				"unet":         {Width: 8, Size: 64},
				"vit_b_16":     {Size: 32, Depth: 1},
				"vit_b_32":     {Size: 64, Depth: 1},
				"vit_l_16":     {Size: 48, Depth: 1},
				"vit_l_32":     {Size: 64, Depth: 1},
				"gpt2":         {Depth: 1},
				"gpt2-medium":  {Depth: 1, Classes: 1000},
				"gpt2-large":   {Depth: 1, Classes: 1000},
				"gpt2-xl":      {Depth: 1, Classes: 1000},
			}[name]
			s := build(t, name, o)
			if nn.Count(s) > 60e6 {
				full(t)
			}
			for _, p := range nn.State(s) {
				// shapes do not depend on values, and drawing hundreds of millions takes its time
				p.SetInit(nn.Zeros)
			}
			materialise(t, c, s)
			x, want := input(t, c, name, o)
			y := s.Forward(nn.NewCtx(c, nn.Config{}), x)
			if !slices.Equal(y.Shape(), want) {
				t.Errorf("%v became %v, want %v", x, y, want)
			}
		})
	}
}

func training(c *torch.Ctx) *nn.Ctx { return nn.NewCtx(c, nn.Config{Training: true, Seed: 5}) }

// gradients lists the gradient of every parameter; each must have one that is not all zeros.
func gradients(t *testing.T, c *torch.Ctx, s *nn.Sequential) [][]byte {
	var out [][]byte
	for _, p := range nn.Params(s) {
		g := c.GradOf(p.Tensor())
		if g == nil {
			t.Errorf("%s has no gradient", p.Name)
			continue
		}
		values := torch.Values[float32](g)
		if !slices.ContainsFunc(values, func(v float32) bool { return v != 0 }) {
			t.Errorf("the gradient of %s is zero", p.Name)
		}
		out = append(out, torch.Bytes(g))
	}
	return out
}

func buffers(s *nn.Sequential) [][]byte {
	var out [][]byte
	for _, b := range nn.Buffers(s) {
		out = append(out, torch.Bytes(b.Tensor()))
	}
	return out
}

func TestGPTLogitsFitCrossEntropyAndItsContextIsLimited(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	s := build(t, "gpt", models.Options{Context: 5})
	materialise(t, c, s)
	n := nn.NewCtx(c, nn.Config{})
	x, _ := input(t, c, "gpt", models.Options{})
	other := c.AddInt_(c.Clone(x), 100) // a token predicts itself well: the head's weight is its embedding
	loss := torch.Item[float32](nn.CrossEntropy().Forward(n, s.Forward(n, x), other))
	if loss < 5 || loss > 6 { // ln 256 is 5.545, and nothing is learned yet
		t.Errorf("the loss of a new model is %v, want about ln 256", loss)
	}
	if err := torch.Try(func() { s.Forward(n, c.Zeros(torch.Int64, 1, 6)) }); err == nil {
		t.Error("a sequence longer than the context went through")
	}
}

// A token's logits must not depend on the tokens after it.
func TestGPTDoesNotSeeTheFuture(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	s := build(t, "gpt", models.Options{Width: 8, Heads: 2, Context: 4, Depth: 2, Classes: 10})
	materialise(t, c, s)
	logits := func(tokens ...int64) []float32 {
		y := s.Forward(nn.NewCtx(c, nn.Config{}), torch.From(c, tokens, 1, 4))
		return torch.Values[float32](c.Op("aten::contiguous", c.Narrow(y, 2, 0, 3)))
	}
	if !slices.Equal(logits(1, 2, 3, 4), logits(1, 2, 3, 9)) {
		t.Error("the last token changed the logits of the first three")
	}
	if slices.Equal(logits(1, 2, 3, 4), logits(9, 2, 3, 4)) {
		t.Error("the first token changed nothing")
	}
}

// Deviations of the initialisations that models choose in place of their layers' own.
func TestInitialisation(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	for _, row := range []struct {
		sized
		want map[string]float64
	}{
		{sized{"resnet20", models.Options{}}, map[string]float64{
			// sqrt(2 / (32 * 3 * 3))
			"layer2.0.conv1.weight": 0.083333333, "layer3.0.downsample.0.weight": 0.17677670}},
		{sized{"vgg11_bn", models.Options{Width: 64}}, map[string]float64{
			// sqrt(2 / (64 * 3 * 3))
			"features.0.weight": 0.058925565, "features.0.bias": 0, "features.1.weight": 1,
			"classifier.0.weight": 0.01, "classifier.6.bias": 0}},
		{sized{"densenet121", models.Options{}}, map[string]float64{
			// sqrt(2 / (3 * 7 * 7)), sqrt(2 / (128 * 3 * 3))
			"features.conv0.weight": 0.11664237, "classifier.bias": 0,
			"features.denseblock1.denselayer1.conv2.weight": 0.041666667}},
		{sized{"inception_v3", models.Options{Aux: true}}, map[string]float64{
			"Conv2d_1a_3x3.conv.weight": 0.1, "Mixed_7c.branch3x3_2a.conv.weight": 0.1,
			"AuxLogits.conv1.conv.weight": 0.1, "AuxLogits.fc.weight": 0.001}},
		{sized{"googlenet", models.Options{}}, map[string]float64{
			"inception4a.branch2.1.conv.weight": 0.01, "fc.weight": 0.01}},
		{sized{"gpt", models.Options{}}, map[string]float64{
			"embed.token.weight": 0.02, "embed.position": 0.02, "blocks.1.attn.qkv.weight": 0.02,
			"blocks.1.attn.qkv.bias": 0, "blocks.1.attn.proj.weight": 0.0070710678, // 0.02 / sqrt(2 * 4)
			"blocks.3.mlp.2.weight": 0.0070710678, "blocks.3.ln1.weight": 1}},
		{sized{"gpt2", models.Options{Width: 96, Depth: 2, Classes: 300}}, map[string]float64{
			"wte.weight": 0.02, "wpe.weight": 0.02, "h.1.attn.c_attn.weight": 0.02,
			// 0.02 / sqrt(2 * 2)
			"h.1.attn.c_proj.weight": 0.01, "h.0.mlp.c_proj.weight": 0.01, "h.0.mlp.c_proj.bias": 0}},
		{sized{"vit_b_16", models.Options{Width: 96, Depth: 1}}, map[string]float64{
			// sqrt(1 / (3 * 16 * 16))
			"conv_proj.weight": 0.036084392, "class_token": 0, "encoder.pos_embedding": 0.02,
			"heads.head.weight": 0,
			// sqrt(2 / (96 + 3 * 96))
			"encoder.layers.encoder_layer_0.self_attention.in_proj_weight": 0.072168784,
			// sqrt(1 / (3 * 96))
			"encoder.layers.encoder_layer_0.self_attention.out_proj.weight": 0.058925565,
			"encoder.layers.encoder_layer_0.self_attention.out_proj.bias":   0,
			// sqrt(2 / (96 + 4 * 96))
			"encoder.layers.encoder_layer_0.mlp.0.weight": 0.064549722}},
	} {
		s, found := build(t, row.name, row.o), 0
		materialise(t, c, s)
		for _, p := range nn.State(s) {
			std, ok := row.want[p.Name]
			if !ok {
				continue
			}
			found++
			sum := 0.0
			values := torch.Values[float32](p.Tensor())
			for _, x := range values {
				sum += float64(x) * float64(x)
			}
			if got := sum / float64(len(values)); got < 0.9*std*std || got > 1.1*std*std {
				t.Errorf("%s of %s: the mean square is %v, want %v", p.Name, row.name, got, std*std)
			}
		}
		if found != len(row.want) {
			t.Errorf("%s: %d of %d parameters are there", row.name, found, len(row.want))
		}
	}
}

// A training step leaves the same gradients and running statistics, bit for bit, in a pipe of many stages
// as in one of one.
func TestStepInAPipe(t *testing.T) {
	for _, m := range append(small, sized{"googlenet", models.Options{Classes: 5, Aux: true}}) {
		t.Run(m.name, func(t *testing.T) {
			c := torchtest.New(t, torch.Options{})
			x, shape := input(t, c, m.name, m.o)
			shape[0] *= 2
			batch := pipe.Batch{Input: pipe.Rows(c.Cat([]*torch.Tensor{x, x}, 0)),
				Target: pipe.Rows(c.Normal_(c.Empty(torch.Float32, shape...), 0, 1))}
			loss := models.NewAuxiliaryLoss(nn.MSE(), 0.3)
			step := func(stages int) (float64, [][]byte) {
				s := build(t, m.name, m.o)
				stir(s)
				defer nn.Free(s)
				balance := make([]int, stages)
				for i := range s.Layers() {
					balance[i*stages/len(s.Layers())]++
				}
				p := must.Get(pipe.New(s, pipe.Config{Balance: balance, Chunks: 2, Seed: 1}))(t)
				defer p.Close()
				result := must.Get(p.Step(context.Background(), batch, loss))(t)
				return result.Loss, append(gradients(t, c, s), buffers(s)...)
			}
			one, whole := step(1)
			if many, cut := step(5); one == 0 || many != one || !slices.EqualFunc(whole, cut, bytes.Equal) {
				t.Errorf("gradients or running statistics differ; the loss is %v, and %v in five stages", one, many)
			}
		})
	}
}

// wholeBlock is a residual block in one layer, written as in the paper's figure.
type wholeBlock struct {
	nn.Base
	main       []nn.Layer
	downsample nn.Layer // nil where the shape does not change
}

// step appends a convolution and a norm, after a ReLU unless it is the first.
func (b *wholeBlock) step(number string, in, out, kernel, stride int64) {
	conv := nn.NewConv2d(in, out, nn.Square(kernel), nn.ConvConfig{Stride: nn.Square(stride),
		Padding: nn.Square(kernel / 2), NoBias: true})
	bn, relu := nn.NewBatchNorm2d(out, nn.BatchNormConfig{}), nn.NewReLUInPlace()
	if len(b.main) > 0 {
		b.Child("relu"+number, relu)
		b.main = append(b.main, relu)
	}
	b.Child("conv"+number, conv)
	b.Child("bn"+number, bn)
	b.main = append(b.main, conv, bn)
}

func (b *wholeBlock) shortcut(in, out, stride int64) *wholeBlock {
	if in != out || stride != 1 {
		b.downsample = nn.NewSequential(nn.NewConv2d(in, out, nn.Square(1),
			nn.ConvConfig{Stride: nn.Square(stride),
				NoBias: true}), nn.NewBatchNorm2d(out, nn.BatchNormConfig{}))
		b.Child("downsample", b.downsample)
	}
	return b
}

func (b *wholeBlock) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	mark := c.Mark()
	y := c.Run(x, b.main...)
	if b.downsample != nil {
		x = c.Run(x, b.downsample)
	}
	c.ReLU_(c.Add_(y, x, 1))
	c.Release(mark, y)
	return y
}

func wholeBasicBlock(in, out, stride int64) nn.Layer {
	b := &wholeBlock{}
	b.step("1", in, out, 3, stride)
	b.step("2", out, out, 3, 1)
	return b.shortcut(in, out, stride)
}

func wholeBottleneck(in, width, stride int64) nn.Layer {
	b := &wholeBlock{}
	b.step("1", in, width, 1, 1)
	b.step("2", width, width, 3, stride)
	b.step("3", width, 4*width, 1, 1)
	return b.shortcut(in, 4*width, stride)
}

// plainResNet is a residual network of such blocks.
func plainResNet(block func(in, width, stride int64) nn.Layer, expansion int64, blocks []int,
	classes int64) *nn.Sequential {
	s := nn.NewSequential().
		Add("conv1", nn.NewConv2d(3, 64, nn.Square(7),
			nn.ConvConfig{Stride: nn.Square(2), Padding: nn.Square(3), NoBias: true})).
		Add("bn1", nn.NewBatchNorm2d(64, nn.BatchNormConfig{})).
		Add("relu", nn.NewReLU()).
		Add("maxpool", nn.NewMaxPool2d(nn.Square(3),
			nn.PoolConfig{Stride: nn.Square(2), Padding: nn.Square(1)}))
	in := int64(64)
	for g, n := range blocks {
		group := nn.NewSequential()
		for i := range n {
			stride := int64(1)
			if g > 0 && i == 0 {
				stride = 2
			}
			group.Add(strconv.Itoa(i), block(in, 64<<g, stride))
			in = expansion * 64 << g
		}
		s.Add("layer"+strconv.Itoa(g+1), group)
	}
	return s.Add("avgpool", nn.NewAdaptiveAvgPool2d(nn.Square(1))).Add("flatten",
		nn.NewFlatten(1, -1)).Add("fc", nn.NewLinear(in, classes))
}

// Blocks that a balance may cut inside compute what blocks in one piece do, to the bit, and name
// their parameters alike.
func TestResNetIsThatOfWholeBlocks(t *testing.T) {
	for _, row := range []struct {
		name  string
		plain *nn.Sequential
	}{
		{"resnet18", plainResNet(wholeBasicBlock, 1, []int{2, 2, 2, 2}, 5)},
		{"resnet50", plainResNet(wholeBottleneck, 4, []int{3, 4, 6, 3}, 5)},
	} {
		t.Run(row.name, func(t *testing.T) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			c := torchtest.New(t, torch.Options{Grad: true})
			x, _ := input(t, c, row.name, models.Options{})
			results := func(s *nn.Sequential) (names []string, values [][]byte) {
				for _, p := range nn.Params(s) {
					p.SetInit(nn.FanIn(64))
				}
				materialise(t, c, s)
				y := s.Forward(training(c), x)
				c.Backward([]*torch.Tensor{y}, []*torch.Tensor{c.Op("aten::ones_like", y)}, false)
				values = append(gradients(t, c, s), torch.Bytes(c.Op("aten::contiguous", y)))
				for _, p := range nn.State(s) {
					names = append(names, p.Name)
				}
				return names, append(values, buffers(s)...)
			}
			names, values := results(build(t, row.name, models.Options{Classes: 5}))
			wantNames, wantValues := results(row.plain)
			if !slices.Equal(names, wantNames) {
				t.Errorf("the state is %q,\nwant %q", names, wantNames)
			}
			if !slices.EqualFunc(values, wantValues, bytes.Equal) {
				t.Error("gradients, output or running statistics differ")
			}
		})
	}
}

// Between the layers of a block nothing is kept that a block in one piece would not keep.
func TestBlocksCutOpenKeepNoMore(t *testing.T) {
	c := torch.NewCtx(torch.Options{Device: torch.CPU(5), Grad: true, Threads: 1})
	torchtest.Check(t)
	defer c.Close()
	kept := func(s *nn.Sequential) (live, peak int64) {
		materialise(t, c, s)
		x := c.Ones(torch.Float32, 2, 3, 32, 32)
		before := c.Device().Memory().Live
		c.Device().ResetPeak()
		y := s.Forward(training(c), x)
		m := c.Device().Memory()
		c.Backward([]*torch.Tensor{y}, []*torch.Tensor{c.Op("aten::ones_like", y)}, false)
		nn.ZeroGrads(s)
		c.Release(0)
		return m.Live - before, m.Peak - before
	}
	live, peak := kept(build(t, "resnet50", models.Options{Classes: 5}))
	wantLive, wantPeak := kept(plainResNet(wholeBottleneck, 4, []int{3, 4, 6, 3}, 5))
	if live > wantLive || peak > wantPeak {
		t.Errorf("%d bytes are kept and %d were live, want at most %d and %d", live, peak, wantLive, wantPeak)
	}
}

// A block of an Inception network leaves for its backward what goes into each norm, what comes out of
// the ReLUs inside its branches, the pool's result with its indices, and its output: what the branches
// end in is not kept beside that.
func TestMixedBlockKeepsNoMore(t *testing.T) {
	torchtest.Check(t)
	c := torch.NewCtx(torch.Options{Device: torch.CPU(5), Grad: true, Threads: 1})
	defer c.Close()
	const rows, size, in = 2, 8, 192
	s := build(t, "googlenet", models.Options{})
	materialise(t, c, s)
	for _, l := range s.Layers() {
		if l.Name != "inception3a" {
			continue
		}
		x := c.Ones(torch.Float32, rows, in, size, size).SetRequiresGrad(true)
		before := c.Device().Memory().Live
		training(c).RunNamed(l, []*torch.Tensor{x})
		got := c.Device().Memory().Live - before
		const (
			convolved = 64 + 96 + 128 + 16 + 32 + 32
			inside    = 96 + 16
			pooled    = in + 2*in // int64 indices
			output    = 64 + 128 + 32 + 32
		)
		if want := int64(4 * (rows*size*size*(convolved+inside+pooled+output) + 2*convolved)); got != want {
			t.Errorf("%s leaves %d bytes, want %d", l.Name, got, want)
		}
		return
	}
	t.Error("there is no inception3a")
}
