package nn

import "penstock.example/torch"

// Embedding looks up rows of its weight: int64 indices [*] to [*, dim].
type Embedding struct {
	Base
	Weight *Param // [n, dim]

	padding int64 // -1 none
}

// EmbeddingConfig configures an Embedding. The zero value has no padding row.
type EmbeddingConfig struct {
	PaddingIdx *int64 // the row that starts as zeros and never gets a gradient; nil is none
}

// NewEmbedding makes an Embedding of n rows. The weight starts normal with standard deviation 1.
func NewEmbedding(n, dim int64, o EmbeddingConfig) *Embedding {
	l, init := &Embedding{padding: -1}, Normal(1)
	if o.PaddingIdx != nil {
		l.padding = *o.PaddingIdx
		init = func(c *torch.Ctx, t *torch.Tensor) {
			c.Normal_(t, 0, 1)
			c.Zero_(c.Narrow(t, 0, l.padding, 1))
		}
	}
	l.Weight = l.Param("weight", init, n, dim)
	return l
}

func (l *Embedding) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	return c.Op("aten::embedding", l.Weight.Tensor(), x, l.padding)
}
