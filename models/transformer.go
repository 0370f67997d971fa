package models

import (
	"strconv"

	"penstock.example/nn"
	"penstock.example/torch"
)

// transformerBlock is skip1, ln1, the attention under its name, drop1, add1, skip2, ln2, mlp,
// drop2, add2. prefix precedes the numbers, as in skip_1. Without dropout there are no drop1 and
// drop2.
func transformerBlock(norm nn.NormConfig, width int64, prefix, name string, attention, mlp nn.Layer,
	dropout float64) *nn.Sequential {
	s := nn.NewSequential()
	for i, part := range []nn.NamedLayer{{Name: name, Layer: attention}, {Name: "mlp", Layer: mlp}} {
		number := prefix + strconv.Itoa(i+1)
		path := []nn.NamedLayer{{Name: "ln" + number, Layer: nn.NewLayerNorm([]int64{width}, norm)}, part}
		if dropout != 0 {
			path = append(path, nn.NamedLayer{Name: "drop" + number, Layer: nn.NewDropout(dropout)})
		}
		s.AddResidual(number, path...)
	}
	return s
}

// addAll adds layers under their names, and returns s.
func addAll(s *nn.Sequential, layers []nn.NamedLayer) *nn.Sequential {
	for _, l := range layers {
		s.Add(l.Name, l.Layer)
	}
	return s
}

// addDropout adds a layer of dropout unless dropout is 0.
func addDropout(s *nn.Sequential, name string, dropout float64) {
	if dropout != 0 {
		s.Add(name, nn.NewDropout(dropout))
	}
}

// addParam adds a parameter, a vector for each position, to its input [N, T, width] in place.
type addParam struct {
	nn.Base
	param *nn.Param // [..., positions, width]
}

func newAddParam(name string, shape ...int64) *addParam {
	a := &addParam{}
	a.param = a.Param(name, nn.Normal(0.02), shape...)
	return a
}

// Forward fails if the input has more positions than the parameter.
func (a *addParam) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	mark := c.Mark()
	c.Add_(x, c.Narrow(a.param.Tensor(), int64(len(a.param.Shape())-2), c.Seen(), x.Size(1)), 1)
	c.Release(mark)
	return x
}

func (a *addParam) OverwritesInput() bool { return true }

// vocabularyHead is a norm, if given, and a linear layer: [N, T, width] to logits [N, classes, T].
type vocabularyHead struct{ unit }

// newVocabularyHead makes a head of a linear layer under a name, which may be empty. The linear
// layer may share its weight with the tokens' embedding (Press and Wolf 2017, "Using the Output
// Embedding to Improve Language Models").
func newVocabularyHead(norm nn.Layer, name string, linear *nn.Linear) nn.Layer {
	h := &vocabularyHead{}
	if norm != nil {
		h.add("norm", norm)
	}
	h.add(name, linear)
	return h
}

// Forward returns a view.
func (h *vocabularyHead) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	return c.Transpose(c.Run(x, h.layers...), 1, 2)
}
