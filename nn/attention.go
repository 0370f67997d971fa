package nn

import (
	"math"
	"sync"

	"penstock.example/internal/engine"
	"penstock.example/torch"
)

// NewDotProductAttention makes multi-head attention (Vaswani et al. 2017, section 3.2) without the
// projections, and so without parameters: [N, T, 3 dim] to [N, T, dim]. The input has the queries,
// keys and values of all heads side by side. A head is a contiguous chunk of width = dim/heads.
// With causal a token does not see later tokens.
//
// With FlashAttention, from libtorch 2.2 on, this is one layer, "attend", whose memory is
// proportional to T. If there is dropout of the weights, or libtorch is older, the layers are
//
//	heads         q, k, v of each head
//	weights       softmax(q k^T / sqrt(width)), v        [N heads, T, T]
//	attn_dropout  of the weights, if dropout is not 0
//	values        concat(weights v)                      [N, T, dim]
//
// Then the graph keeps one tensor of N * heads * T * T elements, the softmax.
func NewDotProductAttention(dim, heads int64, causal bool, dropout float64) []NamedLayer {
	if dropout == 0 && hasFlash() {
		return []NamedLayer{{"attend", &flashAttention{heads: heads, causal: causal}}}
	}
	split := &attentionHeads{dim: dim, heads: heads}
	weigh, join := &attentionWeights{causal: causal}, &attentionValues{heads: heads}
	layers := []NamedLayer{
		{"heads", Tuple(split, split.forward)},
		{"weights", Tuple(weigh, weigh.forward)},
	}
	if dropout != 0 {
		layers = append(layers, NamedLayer{"attn_dropout", newDropoutFirst(dropout)})
	}
	return append(layers, NamedLayer{"values", Tuple(join, join.forward)})
}

// hasFlash reports whether libtorch has FlashAttention for CPUs (Dao et al. 2022).
var hasFlash = sync.OnceValue(func() bool {
	return engine.HasOperator("aten::_scaled_dot_product_flash_attention_for_cpu")
})

// flashAttention is softmax(q k^T / sqrt(width)) v of each head: [N, T, 3 dim] to [N, T, dim]. The
// graph keeps its input, its output and a number for each head and token.
type flashAttention struct {
	Base
	heads  int64
	causal bool
}

func (l *flashAttention) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	mark := c.Mark()
	n, tokens, dim := x.Size(0), x.Size(1), x.Size(2)/3
	var qkv [3]*torch.Tensor
	for i := range qkv {
		part := c.Reshape(c.Narrow(x, -1, int64(i)*dim, dim), n, tokens, l.heads, dim/l.heads)
		qkv[i] = c.Transpose(part, 1, 2)
	}
	k, v := c.appendToCache(qkv[1], "k", 2), c.appendToCache(qkv[2], "v", 2)
	y := c.Op("aten::scaled_dot_product_attention", qkv[0], k, v, nil, 0.0, l.causal && c.Seen() == 0)
	y = c.Reshape(c.Transpose(y, 1, 2), n, tokens, dim)
	c.Release(mark, y)
	return y
}

// attentionHeads splits [N, T, 3 dim] by head: q [N heads, T, width], k [N heads, width, T] and v
// [N heads, T, width]. Batched products save these for backward, so the input is not kept as well.
type attentionHeads struct {
	Base
	dim, heads int64
}

// forward returns copies. If the batch has one sequence, it returns views.
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
	parts[1], parts[2] = c.appendToCache(parts[1], "k", 2), c.appendToCache(parts[2], "v", 1)
	c.Release(mark, parts...)
	return parts
}

// attentionWeights turns q, k and v into the weights of the values, [N heads, T, T], and v.
type attentionWeights struct {
	Base
	causal bool
}

func (l *attentionWeights) forward(c *Ctx, xs []*torch.Tensor) []*torch.Tensor {
	mark := c.Mark()
	q, k, v := xs[0], xs[1], xs[2]
	weights := c.softmaxWeights(c.Matmul(q, k), q.Size(2), l.causal)
	c.Release(mark, weights)
	return []*torch.Tensor{weights, v}
}

// softmaxWeights returns softmax(scores / sqrt(width)) over the last dimension. It overwrites the
// scores, which backward does not need.
func (c *Ctx) softmaxWeights(scores *torch.Tensor, width int64, causal bool) *torch.Tensor {
	mark := c.Mark()
	tokens := scores.Size(-1)
	c.MulScalar_(scores, 1/math.Sqrt(float64(width)))
	if causal && c.Seen() == 0 {
		inner := c.Mark()
		hidden := c.Op("aten::triu", c.Ones(torch.Bool, tokens, tokens), 1)
		c.Op("aten::masked_fill_.Scalar", scores, hidden, math.Inf(-1))
		c.Release(inner)
	}
	weights := c.Op("aten::softmax.int", scores, -1)
	c.Release(mark, weights)
	return weights
}

// attentionValues turns weights and v into sums, with the heads side by side: [N, T, dim].
type attentionValues struct {
	Base
	heads int64
}

func (l *attentionValues) forward(c *Ctx, xs []*torch.Tensor) []*torch.Tensor {
	mark := c.Mark()
	weights, v := xs[0], xs[1]
	n, tokens, width := v.Size(0)/l.heads, weights.Size(1), v.Size(2)
	y := c.Transpose(c.Reshape(c.Matmul(weights, v), n, l.heads, tokens, width), 1, 2)
	y = c.Reshape(y, n, tokens, l.heads*width)
	c.Release(mark, y)
	return []*torch.Tensor{y}
}
