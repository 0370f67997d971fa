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
const cases = 197

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
	dtype := map[safetensors.DType]torch.DType{safetensors.F32: torch.Float32,
		safetensors.I64: torch.Int64}[s.DType]
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

// of makes a builder of PyTorch's arguments.
func of[A any](build func(A) nn.Layer) func(*testing.T, string) nn.Layer {
	return func(t *testing.T, args string) nn.Layer {
		var a A
		decodeStrictly(t, args, &a)
		return build(a)
	}
}

func constant(build func() nn.Layer) func(*testing.T, string) nn.Layer {
	return func(*testing.T, string) nn.Layer { return build() }
}

type (
	images struct {
		In                        int64   `json:"in_channels"`
		Out                       int64   `json:"out_channels"`
		Kernel                    nn.Pair `json:"kernel_size"`
		OutputPadding             nn.Pair `json:"output_padding"`
		Stride, Padding, Dilation nn.Pair
		Groups                    int64
		Bias                      bool
	}
	windows struct {
		Kernel                    nn.Pair `json:"kernel_size"`
		Stride, Padding, Dilation nn.Pair
		Ceil                      bool  `json:"ceil_mode"`
		Include                   *bool `json:"count_include_pad"`
	}
	normed struct {
		Shape  []int64 `json:"normalized_shape"`
		Eps    float64
		Affine *bool `json:"elementwise_affine"`
	}
	block struct {
		In            int64 `json:"in_channels"`
		Out           int64 `json:"out_channels"`
		Width, Stride int64
	}
	attention struct {
		Dim, Heads int64
		Causal     bool
	}
	dim     struct{ Dim int64 }
	dropped struct{ P float64 }
)

func (a images) config() nn.ConvConfig {
	return nn.ConvConfig{Stride: a.Stride, Padding: a.Padding, Dilation: a.Dilation, Groups: a.Groups,
		NoBias: !a.Bias, OutputPadding: a.OutputPadding}
}

func (a windows) config() nn.PoolConfig {
	return nn.PoolConfig{Stride: a.Stride, Padding: a.Padding, Dilation: a.Dilation, CeilMode: a.Ceil,
		ExcludePadding: a.Include != nil && !*a.Include}
}

func (a normed) config() nn.NormConfig {
	return nn.NormConfig{Eps: a.Eps, NoAffine: a.Affine != nil && !*a.Affine}
}

// Builders of the fixtures' layers from PyTorch's arguments.
var layers = map[string]func(t *testing.T, args string) nn.Layer{
	"Linear": of(func(a struct {
		In   int64 `json:"in_features"`
		Out  int64 `json:"out_features"`
		Bias bool
	}) nn.Layer {
		if a.Bias {
			return nn.NewLinear(a.In, a.Out)
		}
		return nn.NewLinearNoBias(a.In, a.Out)
	}),
	"Conv2d": of(func(a images) nn.Layer { return nn.NewConv2d(a.In, a.Out, a.Kernel, a.config()) }),
	"ConvTranspose2d": of(func(a images) nn.Layer {
		return nn.NewConvTranspose2d(a.In, a.Out, a.Kernel, a.config())
	}),
	"Conv1d": of(func(a struct {
		In                                int64 `json:"in_channels"`
		Out                               int64 `json:"out_channels"`
		Kernel                            int64 `json:"kernel_size"`
		Stride, Padding, Dilation, Groups int64
		Bias                              bool
	}) nn.Layer {
		return nn.NewConv1d(a.In, a.Out, a.Kernel, nn.Conv1dConfig{Stride: a.Stride, Padding: a.Padding,
			Dilation: a.Dilation, Groups: a.Groups, NoBias: !a.Bias})
	}),
	"GroupNorm": of(func(a struct {
		Groups   int64 `json:"num_groups"`
		Channels int64 `json:"num_channels"`
		Eps      float64
		Affine   *bool
	}) nn.Layer {
		return nn.NewGroupNorm(a.Groups, a.Channels, normed{Eps: a.Eps, Affine: a.Affine}.config())
	}),
	"InstanceNorm2d": of(func(a struct {
		Features int64 `json:"num_features"`
		Eps      float64
		Affine   bool
	}) nn.Layer {
		return nn.NewInstanceNorm2d(a.Features, nn.NormConfig{Eps: a.Eps, NoAffine: !a.Affine})
	}),
	"LayerNorm": of(func(a normed) nn.Layer { return nn.NewLayerNorm(a.Shape, a.config()) }),
	"RMSNorm":   of(func(a normed) nn.Layer { return nn.NewRMSNorm(a.Shape, a.config()) }),
	"BatchNorm1d": func(t *testing.T, args string) nn.Layer {
		return nn.NewBatchNorm1d(batchNormArgs(t, args))
	},
	"BatchNorm2d": func(t *testing.T, args string) nn.Layer {
		return nn.NewBatchNorm2d(batchNormArgs(t, args))
	},
	"Embedding": of(func(a struct {
		N       int64  `json:"num_embeddings"`
		Dim     int64  `json:"embedding_dim"`
		Padding *int64 `json:"padding_idx"`
	}) nn.Layer {
		return nn.NewEmbedding(a.N, a.Dim, nn.EmbeddingConfig{PaddingIdx: a.Padding})
	}),
	"ReLU": of(func(a struct{ InPlace bool }) nn.Layer {
		if a.InPlace {
			return nn.NewReLUInPlace()
		}
		return nn.NewReLU()
	}),
	"LeakyReLU": of(func(a struct {
		Slope   float64 `json:"negative_slope"`
		InPlace bool
	}) nn.Layer {
		return nn.NewLeakyReLU(a.Slope, a.InPlace)
	}),
	"GELU": of(func(a struct{ Approximate string }) nn.Layer {
		if a.Approximate == "tanh" {
			return nn.NewGELUTanh()
		}
		return nn.NewGELU()
	}),
	"SiLU":       constant(nn.NewSiLU),
	"Tanh":       constant(nn.NewTanh),
	"Sigmoid":    constant(nn.NewSigmoid),
	"Identity":   constant(nn.NewIdentity),
	"Softmax":    of(func(a dim) nn.Layer { return nn.NewSoftmax(a.Dim) }),
	"LogSoftmax": of(func(a dim) nn.Layer { return nn.NewLogSoftmax(a.Dim) }),
	"MaxPool2d":  of(func(a windows) nn.Layer { return nn.NewMaxPool2d(a.Kernel, a.config()) }),
	"AvgPool2d":  of(func(a windows) nn.Layer { return nn.NewAvgPool2d(a.Kernel, a.config()) }),
	"AdaptiveAvgPool2d": of(func(a struct {
		Size nn.Pair `json:"output_size"`
	}) nn.Layer {
		return nn.NewAdaptiveAvgPool2d(a.Size)
	}),
	"Flatten": of(func(a struct {
		Start int64 `json:"start_dim"`
		End   int64 `json:"end_dim"`
	}) nn.Layer {
		return nn.NewFlatten(a.Start, a.End)
	}),
	"Upsample": of(func(a struct {
		Size  nn.Pair
		Scale [2]float64 `json:"scale_factor"`
		Mode  string
		Align bool `json:"align_corners"`
	}) nn.Layer {
		return nn.NewUpsample(nn.UpsampleConfig{Size: a.Size, Scale: a.Scale,
			Bilinear: a.Mode == "bilinear", AlignCorners: a.Align})
	}),
	"Dropout":   of(func(a dropped) nn.Layer { return nn.NewDropout(a.P) }),
	"Dropout2d": of(func(a dropped) nn.Layer { return nn.NewDropout2d(a.P) }),
	"CausalSelfAttention": of(func(a attention) nn.Layer {
		return torchtest.SelfAttention(a.Dim, a.Heads, true)
	}),
	"SelfAttention": of(func(a attention) nn.Layer {
		return torchtest.SelfAttention(a.Dim, a.Heads, a.Causal)
	}),
	"GPTBlock":   of(func(a attention) nn.Layer { return torchtest.TransformerBlock(a.Dim, a.Heads, 0) }),
	"BasicBlock": of(func(a block) nn.Layer { return nn.NewBasicBlock(a.In, a.Out, a.Stride) }),
	"Bottleneck": of(func(a block) nn.Layer {
		return nn.NewBottleneck(a.In, a.Width, 4*a.Width, 1, a.Stride)
	}),
	"MLP": of(func(a struct{ Sizes []int64 }) nn.Layer {
		var l []nn.Layer
		for i := 0; i+1 < len(a.Sizes); i++ {
			if i > 0 {
				l = append(l, nn.NewReLU())
			}
			l = append(l, nn.NewLinear(a.Sizes[i], a.Sizes[i+1]))
		}
		return nn.NewSequential(l...)
	}),
	"TiedHead": of(func(a struct {
		N    int64 `json:"num_embeddings"`
		Dim  int64 `json:"embedding_dim"`
		Bias bool
	}) nn.Layer {
		return tiedHead(a.N, a.Dim, a.Bias)
	}),
	"SharedLinear": of(func(a struct{ Features int64 }) nn.Layer {
		first := nn.NewLinear(a.Features, a.Features)
		second, third := nn.NewLinearShared(first.Weight, false), nn.NewLinearNoBias(a.Features, a.Features)
		second.Bias, third.Bias = second.Share("bias", first.Bias), third.Share("bias", first.Bias)
		return nn.NewSequential().Add("first", first).Add("tanh1", nn.NewTanh()).Add("second",
			second).Add("tanh2", nn.NewTanh()).Add("third", third)
	}),
}

func buildLayer(t *testing.T, layer string, args json.RawMessage) nn.Layer {
	build := layers[layer]
	if build == nil {
		t.Fatalf("layer %q is unknown to this test", layer)
	}
	return build(t, string(args))
}

func batchNormArgs(t *testing.T, args string) (int64, nn.BatchNormConfig) {
	a := struct {
		Features int64 `json:"num_features"`
		Eps      float64
		Momentum float64
		Affine   bool
		Track    bool `json:"track_running_stats"`
	}{Affine: true, Track: true}
	decodeStrictly(t, args, &a)
	return a.Features, nn.BatchNormConfig{Eps: a.Eps, Momentum: a.Momentum, NoAffine: !a.Affine,
		NoRunningStats: !a.Track}
}

// buildLoss is nil when the case is not a loss. Class weights are in the file.
func buildLoss(t *testing.T, p parityCase, f *fixture) nn.Loss {
	var a struct {
		Reduction string
		Smoothing float64 `json:"label_smoothing"`
		Ignore    *int64  `json:"ignore_index"`
		Weight    bool
		PosWeight bool `json:"pos_weight"`
		Delta     float64
	}
	switch p.Layer {
	case "CrossEntropyLoss", "MSELoss", "L1Loss", "HuberLoss", "NLLLoss", "BCEWithLogitsLoss":
		decodeStrictly(t, string(p.Args), &a)
	}
	o := nn.LossConfig{Sum: a.Reduction == "sum", LabelSmoothing: a.Smoothing, IgnoreIndex: a.Ignore,
		Weight: f.vector(a.Weight, "buffer.weight")}
	switch p.Layer {
	case "CrossEntropyLoss":
		return nn.CrossEntropy(o)
	case "MSELoss":
		return nn.MSE(o)
	case "L1Loss":
		return nn.L1(o)
	case "HuberLoss":
		return nn.Huber(a.Delta, o)
	case "NLLLoss":
		return nn.NLL(o)
	case "BCEWithLogitsLoss":
		o.Weight = f.vector(a.PosWeight, "buffer.pos_weight")
		return nn.BCEWithLogits(o)
	}
	return nil
}
