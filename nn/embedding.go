package nn

import "penstock.example/torch"

// Embedding looks up rows of its weight: int64 indices [*] to [*, dim].
type Embedding struct {
	Base
	Weight *Param // [n, dim]
}

// NewEmbedding makes an Embedding of n rows. The weight starts normal with standard deviation 1.
func NewEmbedding(n, dim int64) *Embedding {
	l := &Embedding{}
	l.Weight = l.Param("weight", Normal(1), n, dim)
	return l
}

func (l *Embedding) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	return c.Op("aten::embedding", l.Weight.Tensor(), x)
}
