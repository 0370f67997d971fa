package main

import (
	"math/rand/v2"
	"strconv"

	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// workload is a model and how it is trained. Its loss is the mean squared error to a random target;
// gradients are dropped after each step and no optimizer runs.
type workload struct {
	Model      string          `json:"model"`
	About      string          `json:"about"`
	Options    models.Options  `json:"-"` // of a model of package models
	Batch      int64           `json:"batch"`
	Chunks     int             `json:"chunks"`
	Checkpoint pipe.Checkpoint `json:"checkpoint"`
	// Theirs are options of the network on torchgpipe that ours has not, for another operator
	// there. Variant says which, in the table.
	Theirs  map[string]any `json:"theirs,omitempty"`
	Variant string         `json:"variant,omitempty"`
	// Faster is the least that our throughput over two stages should be of torchgpipe's as shipped;
	// 0 is no target. FasterTuned is the same of torchgpipe with our BLAS kernels and tcmalloc, which
	// is measured only where there is a target.
	Faster, FasterTuned float64 `json:"-"`
}

// The models that are not of package models: a Linear and a ReLU as wide as the input, some times
// over. The small one's products take microseconds, so that it shows what a pipe does beside them.
const (
	mlp   = "mlp"
	small = "small"
)

var perceptrons = map[string]struct{ depth, width int }{mlp: {16, 1024}, small: {32, 64}}

// What convolutions and products should gain over torchgpipe. Products gain more, as torchgpipe
// runs them with the BLAS kernels that the library picks.
const (
	fasterConvolutions = 1.35
	fasterProducts     = 2
	fasterManyProducts = 4 // in micro-batches of few rows
	fasterThanTuned    = 2.5
	fasterSmall        = 4
)

// workloads take a tenth to half a second a step on one stage. Convolutional networks are trained
// as their users would, with checkpoints; the others have the memory not to.
var workloads = []workload{
	{Model: mlp, About: "16 x (Linear 1024, ReLU)", Batch: 256, Chunks: 1, Checkpoint: pipe.Never},
	{Model: mlp, About: "16 x (Linear 1024, ReLU)", Batch: 256, Chunks: 4, Checkpoint: pipe.Never, Faster: fasterProducts},
	{Model: mlp, About: "16 x (Linear 1024, ReLU)", Batch: 256, Chunks: 8, Checkpoint: pipe.Never, Faster: fasterManyProducts, FasterTuned: fasterThanTuned},
	{Model: small, About: "32 x (Linear 64, ReLU)", Batch: 256, Chunks: 8, Checkpoint: pipe.Never, Faster: fasterSmall},
	{
		Model: "gpt", About: "4 blocks, 4 heads, 128 wide, 128 tokens, tied embedding", Batch: 16, Chunks: 8, Checkpoint: pipe.Never,
		Faster: fasterProducts,
	},
	{
		Model: "resnet20", About: "images of 1 x 28 x 28", Options: models.Options{Channels: 1, Size: 28}, Batch: 64, Chunks: 8, Checkpoint: pipe.ExceptLast,
		Faster: fasterConvolutions,
	},
	{
		Model: "resnet50", About: "images of 3 x 64 x 64", Options: models.Options{Size: 64}, Batch: 8, Chunks: 4, Checkpoint: pipe.ExceptLast,
		Faster: fasterConvolutions,
	},
	{
		Model: "amoebanetd", About: "L=3, D=64, images of 3 x 64 x 64", Options: models.Options{Depth: 3, Width: 64, Size: 64}, Batch: 16, Chunks: 8, Checkpoint: pipe.ExceptLast,
		Faster: fasterConvolutions,
	},
	skipped,
	sameNorms,
}

// skipped has skip connections, and so is what the ablation is of too.
var skipped = workload{
	Model: "unet", About: "B=2, C=16, images of 3 x 64 x 64", Options: models.Options{Convolutions: 2, Width: 16, Size: 64}, Batch: 16, Chunks: 8, Checkpoint: pipe.ExceptLast,
	Faster: fasterConvolutions,
}

// sameNorms is skipped against torchgpipe with the operators that ours has: InstanceNorm2d is
// aten::instance_norm there and aten::group_norm here, which takes half the time and lets the
// activation after it work in place.
var sameNorms = func() workload {
	w := skipped
	w.Theirs, w.Variant, w.Faster = map[string]any{"norm": "group_norm"}, "group_norm in both", 0
	return w
}()

// name is the model's, with the variant.
func (w workload) name() string {
	if w.Variant == "" {
		return w.Model
	}
	return w.Model + ", " + w.Variant
}

func (w workload) build() (*nn.Sequential, error) {
	of, ok := perceptrons[w.Model]
	if !ok {
		return models.New(w.Model, w.Options)
	}
	s := nn.NewSequential()
	for i := range of.depth {
		s.Add("fc"+strconv.Itoa(i), nn.NewLinear(int64(of.width), int64(of.width))).Add("relu"+strconv.Itoa(i), nn.NewReLU())
	}
	return s, nil
}

// settings are all options of the model, by name.
func (w workload) settings() (map[string]any, error) {
	if of, ok := perceptrons[w.Model]; ok {
		return map[string]any{"width": of.width, "depth": of.depth}, nil
	}
	list, err := models.Settings(w.Model, w.Options)
	if err != nil {
		return nil, err
	}
	out := map[string]any{}
	for _, s := range list {
		out[s.Name] = s.Value
	}
	return out, nil
}

// shapes are those of an input and its target.
type shapes struct {
	Input  []int64 `json:"input"`
	Target []int64 `json:"target"`
	Tokens int64   `json:"tokens"` // the input is of whole numbers below; 0: of floats
}

func (w workload) shapes(rows int64) (shapes, error) {
	settings, err := w.settings()
	if err != nil {
		return shapes{}, err
	}
	n := func(name string) int64 { return int64(settings[name].(int)) }
	if _, ok := perceptrons[w.Model]; ok {
		return shapes{Input: []int64{rows, n("width")}, Target: []int64{rows, n("width")}}, nil
	}
	info, err := models.Describe(w.Model)
	if err != nil {
		return shapes{}, err
	}
	switch info.Kind {
	case models.Text:
		return shapes{[]int64{rows, n("context")}, []int64{rows, n("classes"), n("context")}, n("classes")}, nil
	case models.Segmentation:
		return shapes{Input: []int64{rows, n("channels"), n("size"), n("size")}, Target: []int64{rows, n("classes"), n("size"), n("size")}}, nil
	default:
		return shapes{Input: []int64{rows, n("channels"), n("size"), n("size")}, Target: []int64{rows, n("classes")}}, nil
	}
}

func normal(c *torch.Ctx, shape []int64) *torch.Tensor {
	return c.Normal_(c.Empty(torch.Float32, shape...), 0, 1)
}

// input is random and c's.
func (s shapes) input(c *torch.Ctx) *torch.Tensor {
	if s.Tokens == 0 {
		return normal(c, s.Input)
	}
	tokens := make([]int64, s.Input[0]*s.Input[1])
	r := rand.New(rand.NewPCG(7, 0))
	for i := range tokens {
		tokens[i] = r.Int64N(s.Tokens)
	}
	return torch.From(c, tokens, s.Input...)
}
