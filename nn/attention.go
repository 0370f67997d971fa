package nn

import (
	"math"
	"slices"

	"penstock.example/torch"
)

// AttentionMask says which tokens of a sequence a token must not look at.
type AttentionMask int

// The masks.
const (
	// NoMask lets each token look at all.
	NoMask AttentionMask = iota
	// CausalMask hides the tokens after a token from it.
	CausalMask
	// GivenMask hides what a tensor says. Layers take and give a tuple: x [N, T, dim] and a mask of
	// torch.Bool, [T, T] for all sequences, or [N, T, T], or [N, 1, T] for all tokens of a sequence;
	// true hides the token of the last dimension, as in PyTorch's MultiheadAttention. A token to
	// which all are hidden gets NaN.
	GivenMask
)

// NewSelfAttention makes the layers by which each token of a sequence looks at others of it (Vaswani
// et al. 2017, section 3.2): [N, T, dim] to the same.
//
//	qkv      x Wqkv + b                              [N, T, 3 dim]
//	heads    q, k, v of each head                    a head is a contiguous chunk of width = dim/heads
//	weights  softmax(mask(q k^T / sqrt(width))), v   [N heads, T, T]
//	values   concat(weights v)                       [N, T, dim]
//	proj     y Wproj + b
//
// Parameters are qkv.weight [3 dim, dim], qkv.bias, proj.weight [dim, dim] and proj.bias. The
// weights take N * heads * T * T elements; the backward keeps them once, after the softmax.
func NewSelfAttention(dim, heads int64, mask AttentionMask) *Sequential {
	core := NewDotProductAttention(dim, heads, mask)
	s := NewSequential().Add("qkv", besideMask(NewLinear(dim, 3*dim), mask))
	for _, l := range core {
		s.Add(l.Name, l.Layer)
	}
	return s.Add("proj", besideMask(NewLinear(dim, dim), mask))
}

// NewDotProductAttention makes the layers of NewSelfAttention without its products, for networks
// that have their own: heads, weights and values, which turn queries, keys and values of all heads,
// side by side in [N, T, 3 dim], into [N, T, dim]. They have no parameters.
func NewDotProductAttention(dim, heads int64, mask AttentionMask) []NamedLayer {
	split := &attentionHeads{dim: dim, heads: heads}
	weigh, join := &attentionWeights{mask: mask, heads: heads}, &attentionValues{heads: heads}
	return []NamedLayer{
		{"heads", Tuple(split, split.forward)},
		{"weights", Tuple(weigh, weigh.forward)},
		{"values", Tuple(join, join.forward)},
	}
}

// besideMask is l, and with a GivenMask a layer that runs l on x of (x, mask).
func besideMask(l Layer, mask AttentionMask) Layer {
	if mask != GivenMask {
		return l
	}
	return Tuple(l, func(c *Ctx, xs []*torch.Tensor) []*torch.Tensor {
		return append([]*torch.Tensor{l.Forward(c, xs[0])}, xs[1:]...)
	})
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
	parts = append(parts, xs[1:]...)
	c.Release(mark, parts...)
	return parts
}

// attentionWeights turns q, k and v into the weights of the values, [N heads, T, T], and v itself.
type attentionWeights struct {
	Base
	mask  AttentionMask
	heads int64
}

// forward works in place on the scores, which nothing needs before the softmax, and frees them
// right after it.
func (l *attentionWeights) forward(c *Ctx, xs []*torch.Tensor) []*torch.Tensor {
	mark := c.Mark()
	q, k, v := xs[0], xs[1], xs[2]
	tokens, width := q.Size(1), q.Size(2)
	var hidden *torch.Tensor
	if l.mask == GivenMask {
		// the heads get a dimension of their own, over which the mask is the same
		n := q.Size(0) / l.heads
		hidden = l.given(c, xs, n, tokens)
		q, k = c.Reshape(q, n, l.heads, tokens, width), c.Reshape(k, n, l.heads, width, tokens)
	}
	scores := c.Matmul(q, k)
	c.MulScalar_(scores, 1/math.Sqrt(float64(width)))
	inner := c.Mark()
	if l.mask == CausalMask {
		hidden = c.Op("aten::triu", c.Ones(torch.Bool, tokens, tokens), 1)
	}
	if hidden != nil {
		c.Op("aten::masked_fill_.Scalar", scores, hidden, math.Inf(-1))
	}
	c.Release(inner)
	weights := c.Op("aten::softmax.int", scores, -1)
	if l.mask == GivenMask {
		weights = c.Reshape(weights, -1, tokens, tokens)
	}
	c.Release(mark, weights)
	return append([]*torch.Tensor{weights, v}, xs[3:]...)
}

// given is the mask as the scores [N, heads, T, T] take it.
func (l *attentionWeights) given(c *Ctx, xs []*torch.Tensor, n, tokens int64) *torch.Tensor {
	if len(xs) == 4 && xs[3].DType() == torch.Bool {
		switch mask, shape := xs[3], xs[3].Shape(); {
		case slices.Equal(shape, []int64{tokens, tokens}):
			return mask
		case slices.Equal(shape, []int64{n, tokens, tokens}), slices.Equal(shape, []int64{n, 1, tokens}):
			return c.Reshape(mask, n, 1, shape[1], tokens)
		}
	}
	c.fail("attention", xs, "expected a mask after the %d sequences of %d tokens: torch.Bool [%[2]d %[2]d], "+
		"[%[1]d %[2]d %[2]d] or [%[1]d 1 %[2]d]", n, tokens)
	return nil
}

// attentionValues turns weights and v into the weighted sums of values, heads side by side: [N, T,
// dim]. A mask goes past it, as past attentionHeads.
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
	return append([]*torch.Tensor{y}, xs[2:]...)
}
