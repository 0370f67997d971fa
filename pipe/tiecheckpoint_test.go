package pipe_test

import (
	"fmt"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/torch"
)

// A layer that recomputes by itself may use a shared parameter. Its second run once added the
// gradient to the parameter's by itself, before the graph summed the other uses: in another order,
// and so to other bits, where a cut lay between them.
func TestTiedParametersInCheckpointedLayers(t *testing.T) {
	torchtest.Check(t)
	for _, where := range [][3]bool{{false, true, false}, {false, false, true}, {true, true, true}} {
		q := tokens(7)
		q.steps = 2
		q.model = func() *nn.Sequential {
			wrapped := func(i int, l nn.Layer) nn.Layer {
				if where[i] {
					return nn.Checkpointed(l)
				}
				return l
			}
			e := nn.NewEmbedding(6, 4, nn.EmbeddingConfig{})
			middle, head := &call{}, &call{}
			u, w := middle.Share("weight", e.Weight), head.Share("weight", e.Weight)
			middle.f = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				up := func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
					return []*torch.Tensor{c.Tanh(c.PlainLinear(xs[0], u.Tensor(), nil))}
				}
				// within each other, where all are wrapped
				return c.Matmul(c.Checkpoint(up, x)[0], u.Tensor())
			}
			head.f = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.PlainLinear(x, w.Tensor(), nil) }
			return nn.NewSequential(wrapped(0, e), wrapped(1, middle), nn.NewTanh(), wrapped(2, head))
		}
		t.Run(fmt.Sprint(where), func(t *testing.T) { q.check(t, 3) })
	}
}
