package nn

import (
	"penstock.example/torch"
)

// AttentionConfig configures NewGroupedAttention.
type AttentionConfig struct {
	Dim       int64     // of a token's vector
	Heads     int64     // of queries
	KVHeads   int64     // of keys and values; divides Heads
	HeadDim   int64     // elements of a head
	Names     [3]string // of the projections; the zero value is q_proj, k_proj, v_proj
	Bias      bool      // the projections have biases
	OutBias   bool      // o_proj has a bias
	NormHeads bool      // each head of queries and keys has an RMSNorm, q_norm or k_norm
	Eps       float64   // of these norms
	Causal    bool      // a token does not see later tokens
	// Frequencies has rotations in radians per token. With n frequencies, frequency i rotates the
	// elements i and i+n of a head, and the elements from 2n on stay. Nil is no rotation.
	Frequencies []float64
	// Window is the attention window of the model. Longer sequences are refused; 0 is any length.
	Window int64
}

// NewGroupedAttention makes the three layers of self-attention in which groups of heads share keys
// and values (Ainslie et al. 2023, "GQA") and positions are rotations (Su et al. 2021, "RoFormer",
// section 3.2): [N, T, dim] to the same.
//
//	(no name)  projections, norms, rotation          q, k, v of each head
//	attend     softmax(q k^T / sqrt(HeadDim)) v      [N, T, Heads * HeadDim]
//	o_proj     y Wo + b                              [N, T, dim]
//
// The attention is libtorch's FlashAttention where it has one; see NewDotProductAttention.
func NewGroupedAttention(o AttentionConfig) []NamedLayer {
	if o.Names == [3]string{} {
		o.Names = [3]string{"q_proj", "k_proj", "v_proj"}
	}
	p := &groupedHeads{AttentionConfig: o}
	for i, heads := range []int64{o.Heads, o.KVHeads, o.KVHeads} {
		p.project[i] = newLinear(o.Dim, heads*o.HeadDim, o.Bias)
		p.Child(o.Names[i], p.project[i])
	}
	if o.NormHeads {
		for i, name := range []string{"q_norm", "k_norm"} {
			p.norm[i] = NewRMSNorm([]int64{o.HeadDim}, NormConfig{Eps: o.Eps})
			p.Child(name, p.norm[i])
		}
	}
	attend := &groupedAttention{kvHeads: o.KVHeads, causal: o.Causal}
	return []NamedLayer{
		{"", Tuple(p, p.forward)},
		{"attend", Tuple(attend, attend.forward)},
		{"o_proj", newLinear(o.Heads*o.HeadDim, o.Dim, o.OutBias)},
	}
}

type groupedHeads struct {
	Base
	AttentionConfig
	project, norm [3]Layer // of q, k, v; nil without a norm
}

// forward gives q [N KVHeads, Heads/KVHeads, T, HeadDim], and k and v [N KVHeads, 1, T, HeadDim].
func (l *groupedHeads) forward(c *Ctx, xs []*torch.Tensor) []*torch.Tensor {
	mark := c.Mark()
	x := xs[0]
	n, tokens := x.Size(0), x.Size(1)
	if l.Window != 0 && c.Seen()+tokens > l.Window {
		c.fail("attention", xs, "the model's attention has a window of %d tokens; give sequences of at "+
			"most as many", l.Window)
	}
	var cos, sin *torch.Tensor
	if l.Frequencies != nil {
		cos, sin = l.rotation(c, tokens)
	}
	heads := make([]*torch.Tensor, 3)
	for i, groups := range []int64{l.Heads / l.KVHeads, 1, 1} {
		inner := c.Mark()
		y := c.Reshape(c.Run(x, l.project[i]), n, tokens, l.KVHeads, groups, l.HeadDim)
		if l.norm[i] != nil {
			y = c.Run(y, l.norm[i])
		}
		y = c.Op("aten::permute", y, []int64{0, 2, 3, 1, 4})
		if i < 2 && cos != nil {
			y = l.rotate(c, y, cos, sin)
		}
		heads[i] = c.Reshape(y, n*l.KVHeads, groups, tokens, l.HeadDim)
		c.Release(inner, heads[i])
	}
	heads[1], heads[2] = c.appendToCache(heads[1], "k", 2), c.appendToCache(heads[2], "v", 2)
	c.Release(mark, heads...)
	return heads
}

// rotation returns the cosine and the sine of each token's rotation, [T, frequencies] in float32.
func (l *groupedHeads) rotation(c *Ctx, tokens int64) (cos, sin *torch.Tensor) {
	frequencies := make([]float32, len(l.Frequencies))
	for i, f := range l.Frequencies {
		frequencies[i] = float32(f)
	}
	mark := c.Mark()
	positions := c.Op("aten::arange.start", c.Seen(), c.Seen()+tokens, torch.Float32, nil, c.Device())
	angles := c.Mul(c.Reshape(positions, tokens, 1), torch.From(c.Ctx, frequencies))
	cos, sin = c.Op("aten::cos", angles), c.Op("aten::sin", angles)
	c.Release(mark, cos, sin)
	return cos, sin
}

// rotate rotates the first elements of each head, [..., T, HeadDim].
func (l *groupedHeads) rotate(c *Ctx, x, cos, sin *torch.Tensor) *torch.Tensor {
	mark := c.Mark()
	if cos.DType() != x.DType() {
		cos, sin = c.To(cos, x.DType()), c.To(sin, x.DType())
	}
	n := int64(len(l.Frequencies))
	a, b := c.Narrow(x, -1, 0, n), c.Narrow(x, -1, n, n)
	parts := []*torch.Tensor{
		c.Op("aten::sub_.Tensor", c.Mul(a, cos), c.Mul(b, sin)),
		c.Add_(c.Mul(b, cos), c.Mul(a, sin), 1),
	}
	if rest := l.HeadDim - 2*n; rest > 0 {
		parts = append(parts, c.Narrow(x, -1, 2*n, rest))
	}
	y := c.Cat(parts, -1)
	c.Release(mark, y)
	return y
}

// groupedAttention makes [N, T, Heads * HeadDim] from the q, k and v of groupedHeads.
type groupedAttention struct {
	Base
	kvHeads int64
	causal  bool
}

func (l *groupedAttention) forward(c *Ctx, xs []*torch.Tensor) []*torch.Tensor {
	mark := c.Mark()
	q, k, v := xs[0], xs[1], xs[2]
	n, groups, tokens, width := q.Size(0)/l.kvHeads, q.Size(1), q.Size(2), q.Size(3)
	keys := k.Size(2)
	var y *torch.Tensor
	if hasFlash() {
		k, v = c.Expand(k, k.Size(0), groups, keys, width), c.Expand(v, v.Size(0), groups, keys, width)
		y = c.Op("aten::scaled_dot_product_attention", q, k, v, nil, 0.0, l.causal && keys == tokens)
	} else {
		merge := func(x *torch.Tensor, last int64) *torch.Tensor { return c.Reshape(x, q.Size(0), -1, last) }
		scores := c.Matmul(merge(q, width), c.Transpose(merge(k, width), 1, 2))
		weights := c.softmaxWeights(c.Reshape(scores, -1, groups, tokens, keys), width, l.causal)
		y = c.Matmul(merge(weights, keys), merge(v, width))
	}
	y = c.Reshape(y, n, l.kvHeads, groups, tokens, width)
	y = c.Reshape(c.Op("aten::permute", y, []int64{0, 3, 1, 2, 4}), n, tokens, l.kvHeads*groups*width)
	c.Release(mark, y)
	return []*torch.Tensor{y}
}

// NewSwiGLU makes the layers of a gated feed-forward (Shazeer 2020, "GLU Variants Improve
// Transformer", section 2): [N, T, dim] to the same, without biases.
//
//	(no name)  gate_proj, up_proj      x Wg, x Wu          [N, T, hidden]
//	act        silu(gate) up           [N, T, hidden]
//	down_proj  y Wd
func NewSwiGLU(dim, hidden int64) *Sequential {
	f, act := &gateUp{gate: NewLinearNoBias(dim, hidden), up: NewLinearNoBias(dim, hidden)}, &swiGLU{}
	f.Child("gate_proj", f.gate)
	f.Child("up_proj", f.up)
	return NewSequential().
		Add("", Tuple(f, f.forward)).
		Add("act", Tuple(act, act.forward)).
		Add("down_proj", NewLinearNoBias(hidden, dim))
}

type gateUp struct {
	Base
	gate, up Layer
}

func (l *gateUp) forward(c *Ctx, xs []*torch.Tensor) []*torch.Tensor {
	return []*torch.Tensor{c.Run(xs[0], l.gate), c.Run(xs[0], l.up)}
}

type swiGLU struct{ Base }

func (*swiGLU) forward(c *Ctx, xs []*torch.Tensor) []*torch.Tensor {
	mark := c.Mark()
	y := c.Mul(c.Op("aten::silu", xs[0]), xs[1])
	c.Release(mark, y)
	return []*torch.Tensor{y}
}
