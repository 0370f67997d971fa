package nn

import (
	"math"

	"penstock/torch"
)

// CausalSelfAttention lets each token of a sequence look at itself and the tokens before it (Vaswani et al. 2017, section 3.2, masked): [N, T, dim] to the same.
//
//	q, k, v = split(x Wqkv + b)                      a head is a contiguous chunk of dim/heads
//	y = softmax(mask(q k^T / sqrt(dim/heads))) v     for each head
//	out = concat(y) Wproj + b
//
// The scores take N * heads * T * T elements; the backward keeps them once, after the softmax.
type CausalSelfAttention struct {
	Base
	qkv, proj  *Linear
	dim, heads int64
}

// NewCausalSelfAttention makes a CausalSelfAttention with parameters qkv.weight [3 dim, dim], qkv.bias, proj.weight [dim, dim] and proj.bias.
func NewCausalSelfAttention(dim, heads int64) *CausalSelfAttention {
	requirePositive("CausalSelfAttention", "dim", dim)
	requirePositive("CausalSelfAttention", "heads", heads)
	require(dim%heads == 0, "CausalSelfAttention: dim is %d, which %d heads do not divide; choose a multiple of the heads", dim, heads)
	a := &CausalSelfAttention{dim: dim, heads: heads, qkv: NewLinear(dim, 3*dim), proj: NewLinear(dim, dim)}
	a.Child("qkv", a.qkv)
	a.Child("proj", a.proj)
	return a
}

// Forward works in place on the scores, which nothing needs before the softmax, and lets go of them right after it.
func (a *CausalSelfAttention) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	mark := c.Mark()
	n, tokens, width := x.Size(0), x.Size(1), a.dim/a.heads
	head := func(t *torch.Tensor) *torch.Tensor { // [N, heads, T, width], a view
		return c.Transpose(c.Reshape(t, n, tokens, a.heads, width), 1, 2)
	}
	qkv := c.Split(c.Run(x, a.qkv), a.dim, -1)
	q, k, v := head(qkv[0]), head(qkv[1]), head(qkv[2])

	scores := c.Matmul(q, c.Transpose(k, -2, -1))
	c.MulScalar_(scores, 1/math.Sqrt(float64(width)))
	inner := c.Mark()
	c.MaskedFill_(scores, c.Triu(c.Ones(torch.Bool, tokens, tokens), 1), math.Inf(-1))
	c.Release(inner)
	weights := c.Softmax(scores, -1)
	c.Release(mark, weights, v)

	y := c.Matmul(weights, v)
	c.Release(mark, y)
	y = c.Run(c.Reshape(c.Transpose(y, 1, 2), n, tokens, a.dim), a.proj)
	c.Release(mark, y)
	return y
}
