package nn

import (
	"math"

	"penstock.example/torch"
)

// NewSelfAttention makes the layers by which each token of a sequence looks at others of it (Vaswani
// et al. 2017, section 3.2): [N, T, dim] to the same.
//
//	qkv      x Wqkv + b                              [N, T, 3 dim]
//	heads    q, k, v of each head                    a head is a contiguous chunk of width = dim/heads
//	weights  softmax(q k^T / sqrt(width)), v        [N heads, T, T]
//	values   concat(weights v)                       [N, T, dim]
//	proj     y Wproj + b
//
// With causal the tokens after a token are hidden from it. Parameters are qkv.weight [3 dim, dim], qkv.bias, proj.weight [dim, dim] and proj.bias. The
// weights take N * heads * T * T elements; the backward keeps them once, after the softmax.
func NewSelfAttention(dim, heads int64, causal bool) *Sequential {
	core := NewDotProductAttention(dim, heads, causal)
	s := NewSequential().Add("qkv", NewLinear(dim, 3*dim))
	for _, l := range core {
		s.Add(l.Name, l.Layer)
	}
	return s.Add("proj", NewLinear(dim, dim))
}

// NewDotProductAttention makes the layers of NewSelfAttention without its products, for networks
// that have their own: heads, weights and values, which turn queries, keys and values of all heads,
// side by side in [N, T, 3 dim], into [N, T, dim]. They have no parameters.
func NewDotProductAttention(dim, heads int64, causal bool) []NamedLayer {
	split := &attentionHeads{dim: dim, heads: heads}
	weigh, join := &attentionWeights{causal: causal}, &attentionValues{heads: heads}
	return []NamedLayer{
		{"heads", Tuple(split, split.forward)},
		{"weights", Tuple(weigh, weigh.forward)},
		{"values", Tuple(join, join.forward)},
	}
}

// attentionHeads turns queries, keys and values of all heads, [N, T, 3 dim], into those of each: q
// [N heads, T, width], k [N heads, width, T] and v [N heads, T, width]. This is the layout in which
// products of matrices keep them for backward, so the input need not be kept as well.
type attentionHeads struct {
	Base
	dim, heads int64
}

// forward copies. The heads of a single sequence are views.
func (l *attentionHeads) forward(c *Ctx, xs []*torch.Tensor) []*torch.Tensor {
	mark := c.Mark()
	parts := c.Call("aten::split.Tensor", xs[0], l.dim, -1)[0].([]*torch.Tensor)
	n, tokens, width := parts[0].Size(0), parts[0].Size(1), l.dim/l.heads
	for i, part := range parts {
		head := c.Transpose(c.Reshape(part, n, tokens, l.heads, width), 1, 2)
		if i == 1 {
			parts[i] = c.Reshape(c.Transpose(head, -2, -1), n*l.heads, width, tokens)
		} else {
			parts[i] = c.Reshape(head, n*l.heads, tokens, width)
		}
	}
	c.Release(mark, parts...)
	return parts
}

// attentionWeights turns q, k and v into the weights of the values, [N heads, T, T], and v itself.
type attentionWeights struct {
	Base
	causal bool
}

// forward works in place on the scores, which nothing needs before the softmax, and frees them
// right after it.
func (l *attentionWeights) forward(c *Ctx, xs []*torch.Tensor) []*torch.Tensor {
	mark := c.Mark()
	q, k, v := xs[0], xs[1], xs[2]
	tokens, width := q.Size(1), q.Size(2)
	scores := c.Matmul(q, k)
	c.MulScalar_(scores, 1/math.Sqrt(float64(width)))
	if l.causal {
		inner := c.Mark()
		hidden := c.Op("aten::triu", c.Ones(torch.Bool, tokens, tokens), 1)
		c.Op("aten::masked_fill_.Scalar", scores, hidden, math.Inf(-1))
		c.Release(inner)
	}
	weights := c.Op("aten::softmax.int", scores, -1)
	c.Release(mark, weights)
	return []*torch.Tensor{weights, v}
}

// attentionValues turns weights and v into the weighted sums of values, heads side by side: [N, T,
// dim].
type attentionValues struct {
	Base
	heads int64
}

func (l *attentionValues) forward(c *Ctx, xs []*torch.Tensor) []*torch.Tensor {
	mark := c.Mark()
	weights, v := xs[0], xs[1]
	n, tokens, width := v.Size(0)/l.heads, v.Size(1), v.Size(2)
	y := c.Transpose(c.Reshape(c.Matmul(weights, v), n, l.heads, tokens, width), 1, 2)
	y = c.Reshape(y, n, tokens, l.heads*width)
	c.Release(mark, y)
	return []*torch.Tensor{y}
}
