package main

import (
	"math/rand/v2"

	"penstock.example/models"
	"penstock.example/torch"
)

// network is what is trained by plans of what to recompute.
type network struct {
	Model   string         `json:"model"`
	Options models.Options `json:"-"`
	Batch   int64          `json:"batch"`
	quick   bool           // one of those that a short run takes
}

// networks take a fifth to three fifths of a second a step if nothing is computed again. Larger
// batches leave parameters and their gradients, which no plan saves, a smaller part of the memory;
// they change little else.
var networks = []network{
	{Model: "resnet18", Options: models.Options{Size: 112}, Batch: 16},
	{Model: "resnet50", Options: models.Options{Size: 96}, Batch: 8},
	{Model: "vgg16_bn", Options: models.Options{Size: 80, Width: 256, Classes: 10}, Batch: 4},
	{Model: "densenet121", Options: models.Options{Size: 96}, Batch: 6},
	{Model: "googlenet", Options: models.Options{Size: 96}, Batch: 8, quick: true},
	{Model: "unet", Options: models.Options{Convolutions: 2, Width: 16, Size: 128, Classes: 4}, Batch: 4, quick: true},
}

// batch makes up inputs, and a class for each answer.
func (n network) batch(c *torch.Ctx) (input, target *torch.Tensor, err error) {
	s, err := workload{Model: n.Model, Options: n.Options, Batch: n.Batch}.shapes(n.Batch)
	if err != nil {
		return nil, nil, err
	}
	shape := append([]int64{s.Target[0]}, s.Target[2:]...)
	count := int64(1)
	for _, size := range shape {
		count *= size
	}
	list, r := make([]int64, count), rand.New(rand.NewPCG(stepSeed, 0))
	for i := range list {
		list[i] = r.Int64N(s.Target[1])
	}
	return s.input(c), torch.From(c, list, shape...), nil
}
