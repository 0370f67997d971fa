package nn_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock.example/nn"
	"penstock.example/torch"
)

// pairOf is a layer with a parameter of its own and two layers inside.
type pairOf struct {
	nn.Base
	scale  *nn.Param
	layers []nn.Layer
}

func newPairOf() *pairOf {
	l := &pairOf{layers: []nn.Layer{nn.NewLinear(8, 8), nn.NewLinear(8, 8)}}
	l.scale = l.Param("scale", nn.Ones)
	l.Child("first", l.layers[0])
	l.Child("second", l.layers[1])
	return l
}

func (l *pairOf) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	return c.Mul(c.Run(x, l.layers...), l.scale.Tensor())
}

// The text is read by people: layers as a balance counts them, with what is known without an input.
func TestPrintedModelIsASummary(t *testing.T) {
	embedding := nn.NewEmbedding(10, 8, nn.EmbeddingConfig{})
	norm := nn.NewBatchNorm1d(8, nn.BatchNormConfig{})
	frozen := nn.NewLinearNoBias(8, 8)
	frozen.Weight.Freeze()
	model := nn.NewSequential().
		Add("embed", embedding).
		Add("body", nn.NewSequential(nn.NewLinear(8, 8), nn.NewReLU(), norm)).
		Add("pair", newPairOf()).
		Add("frozen", nn.Checkpointed(frozen)).
		Add("head", nn.NewLinearShared(embedding.Weight, true))
	for _, row := range []struct {
		reason string
		m      nn.Module
		want   string
	}{
		{"a Sequential", model, `
layer   type       shapes                               parameters  bytes
embed   Embedding  weight [10 8]                                80    320
body.0  Linear     weight [8 8], bias [8]                       72    288
body.1  ReLU                                                     0      0
body.2  BatchNorm  weight [8], bias [8]                         16    136
pair    pairOf     5 tensors                                   145    580
frozen  Linear     weight [8 8] frozen                           0    256
head    Linear     weight shared with embed, bias [10]          10     40
        7 layers                                               323   1620
`},
		{"a layer", nn.NewLinear(3, 2), `
layer  type     shapes                  parameters  bytes
                weight [2 3], bias [2]           8     32
       1 layer                                   8     32
`},
		{"a layer of layers", newPairOf(), `
layer   type      shapes                  parameters  bytes
                  scale []                         1      4
first   Linear    weight [8 8], bias [8]          72    288
second  Linear    weight [8 8], bias [8]          72    288
        3 layers                                 145    580
`},
		{"nothing", nn.NewSequential(), `
layer  type      shapes  parameters  bytes
       0 layers                   0      0
`},
	} {
		if diff := cmp.Diff(row.want, "\n"+fmt.Sprintln(row.m)); diff != "" {
			t.Errorf("%s:\n%s", row.reason, diff)
		}
	}
	if got, want := nn.Count(model), int64(323); got != want {
		t.Errorf("Count says %d parameters, the summary %d", got, want)
	}
}
