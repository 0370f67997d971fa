package main

import (
	"math/rand/v2"
	"strings"

	"penstock/models"
	"penstock/nn"
	"penstock/torch"
)

// measuredModel is a model that a verb measures on made-up samples. Its weights do not exist yet.
type measuredModel struct {
	name    string
	info    models.Info
	options models.Options
	model   *nn.Sequential
	input   []int64 // of one sample
	classes int
}

// newMeasuredModel makes the model that --model and --set ask for. Its errors are usage errors.
func newMeasuredModel(name string, set []string) (measuredModel, error) {
	var o models.Options
	if err := models.Set(name, &o, set); err != nil {
		return measuredModel{}, badUsage("--set %s", message(err))
	}
	m, err := measuredWith(name, o)
	if err != nil {
		return m, badUsage("--set %s: %s", strings.Join(set, ","), message(err))
	}
	return m, nil
}

// measuredWith makes the model with these options.
func measuredWith(name string, o models.Options) (m measuredModel, err error) {
	m.name, m.options = name, o
	if m.info, err = models.Describe(name); err != nil {
		return m, err
	}
	if m.model, err = models.New(name, o); err != nil {
		return m, err
	}
	m.input, m.classes = m.info.Input, m.info.Defaults.Classes
	for at, size := range map[int]int{0: o.Context + o.Channels, 1: o.Size, 2: o.Size} { // a model reads text, or images
		if size != 0 && at < len(m.input) {
			m.input[at] = int64(size)
		}
	}
	if o.Classes != 0 {
		m.classes = o.Classes
	}
	return m, nil
}

// sample makes up an input of rows samples.
func (m measuredModel) sample(c *torch.Ctx, rows int) *torch.Tensor {
	shape := append([]int64{int64(rows)}, m.input...)
	if m.info.Kind != models.Text {
		return c.Randn(shape...)
	}
	tokens := make([]int64, shape[0]*shape[1])
	for i := range tokens {
		tokens[i] = int64(i % m.classes)
	}
	return torch.From(c, tokens, shape...)
}

// target makes up a class for each answer of the model on rows samples: for each image, pixel or
// token.
func (m measuredModel) target(c *torch.Ctx, rows int, seed uint64) *torch.Tensor {
	shape := []int64{int64(rows)}
	switch m.info.Kind {
	case models.Text:
		shape = append(shape, m.input...)
	case models.Segmentation:
		shape = append(shape, m.input[1:]...)
	}
	n := int64(1)
	for _, size := range shape {
		n *= size
	}
	list, r := make([]int64, n), rand.New(rand.NewPCG(seed, 0))
	for i := range list {
		list[i] = r.Int64N(int64(m.classes))
	}
	return torch.From(c, list, shape...)
}
