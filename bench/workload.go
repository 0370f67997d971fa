package main

import (
	"maps"
	"math/rand/v2"
	"strconv"

	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// workload is a model and how it is trained: mean squared error to a random target, gradients
// dropped after each step, no optimizer.
type workload struct {
	Model      string
	Options    models.Options // not for mlp, which is made here
	Batch      int64
	Chunks     int
	Checkpoint pipe.Checkpoint
	Balance    []int // for two equally slow stages
	Precision  string
}

// Precisions. The zero value is float32.
const (
	tf32     = "tf32" // float32 with TF32 products and convolutions
	bfloat16 = "bfloat16"
)

// The mlp is mlpDepth times a Linear and a ReLU, as wide as the input.
const mlpDepth, mlpWidth = 16, 1024

// The workloads take a tenth to half a second a step on one thread. In a pipeline convolutional
// networks recompute; the others have the memory not to.
var (
	mlp      = workload{"mlp", models.Options{}, 256, 8, pipe.Never, []int{16, 16}, ""}
	gpt      = workload{"gpt", models.Options{}, 16, 8, pipe.Never, []int{31, 27}, ""}
	resnet20 = workload{"resnet20", models.Options{Channels: 1, Size: 28}, 64, 8, pipe.ExceptLast, []int{5,
		6}, ""}
	resnet50 = workload{"resnet50", models.Options{Size: 64}, 8, 4, pipe.ExceptLast, []int{108, 75}, ""}
	unet     = workload{"unet", models.Options{Convolutions: 2, Width: 16, Size: 64}, 16, 8, pipe.ExceptLast,
		[]int{54, 55}, ""}
)

// largeWorkloads are for GPUs or, small, for a trial on a CPU. They recompute as plans say.
func (b *bench) largeWorkloads() (list []workload) {
	images := models.Options{Size: 224}
	gpt := models.Options{Classes: 50304, Width: 1024, Depth: 24, Heads: 16, Context: 1024}
	list = []workload{{Model: "gpt", Options: gpt, Batch: 4},
		{Model: "resnet101", Options: images, Batch: 64},
		{Model: "vgg16", Options: images, Batch: 64}}
	if b.device.Kind == torch.KindCPU {
		list = []workload{{Model: "gpt", Options: models.Options{Depth: 6}, Batch: 4},
			{Model: "resnet20", Options: models.Options{Channels: 1, Size: 28}, Batch: 16}}
	}
	for i := range list {
		list[i] = list[i].in(1, pipe.Optimal)
		list[i].Precision = tf32
	}
	return list
}

// in returns the workload with another number of micro-batches and another policy.
func (w workload) in(chunks int, policy pipe.Checkpoint) workload {
	w.Chunks, w.Checkpoint = chunks, policy
	return w
}

func (w workload) build() (*nn.Sequential, error) {
	if w.Model != mlp.Model {
		return models.New(w.Model, w.Options)
	}
	s := nn.NewSequential()
	for i := range mlpDepth {
		s.Add("fc"+strconv.Itoa(i), nn.NewLinear(mlpWidth, mlpWidth))
		s.Add("relu"+strconv.Itoa(i), nn.NewReLU())
	}
	return s, nil
}

// shapes are the sizes of an input and its target, and all options of the model.
type shapes struct {
	input, target []int64
	tokens        int64 // the input has whole numbers below tokens, or floats if it is 0
	options       map[string]any
}

func (w workload) shapes() (shapes, error) {
	if w.Model == mlp.Model {
		both := []int64{w.Batch, mlpWidth}
		return shapes{both, both, 0, map[string]any{"width": mlpWidth, "depth": mlpDepth}}, nil
	}
	list, err := models.Settings(w.Model, w.Options)
	if err != nil {
		return shapes{}, err
	}
	options := map[string]any{}
	for _, x := range list {
		options[x.Name] = x.Value
	}
	n := func(name string) int64 { return int64(options[name].(int)) }
	info, err := models.Describe(w.Model)
	if info.Kind == models.Text {
		classes, context := n("classes"), n("context")
		return shapes{[]int64{w.Batch, context}, []int64{w.Batch, classes, context}, classes, options}, err
	}
	target := []int64{w.Batch, n("classes")}
	if info.Kind == models.Segmentation {
		target = append(target, n("size"), n("size"))
	}
	return shapes{[]int64{w.Batch, n("channels"), n("size"), n("size")}, target, 0, options}, err
}

// request describes the workload to an opponent. more has further fields.
func (w workload) request(more map[string]any) (map[string]any, error) {
	s, err := w.shapes()
	all := map[string]any{"model": w.Model, "options": s.options, "input": s.input, "target": s.target,
		"tokens": s.tokens, "precision": w.Precision, "deterministic": *deterministic}
	maps.Copy(all, more)
	return all, err
}

func normal(c *torch.Ctx, shape []int64) *torch.Tensor {
	return c.Normal_(c.Empty(torch.Float32, shape...), 0, 1)
}

// random returns an input that belongs to c.
func (s shapes) random(c *torch.Ctx) *torch.Tensor {
	if s.tokens == 0 {
		return normal(c, s.input)
	}
	tokens := make([]int64, s.input[0]*s.input[1])
	r := rand.New(rand.NewPCG(7, 0))
	for i := range tokens {
		tokens[i] = r.Int64N(s.tokens)
	}
	return torch.From(c, tokens, s.input...)
}
