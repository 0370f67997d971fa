package nn

import "penstock/torch"

// TransformerBlock is GPT-2's block, normalised before each part (Radford et al. 2019, section 2.3): [N, T, dim] to the same.
//
//	x = x + dropout(attn(ln1(x)))
//	x = x + dropout(mlp(ln2(x)))      mlp is Linear(dim, 4 dim), GELU (tanh), Linear(4 dim, dim)
type TransformerBlock struct {
	Base
	attention, perceptron []Layer // what is added to x, in order
}

// TransformerConfig configures a TransformerBlock. The zero value is without dropout.
type TransformerConfig struct {
	Dropout float64 // of what each part adds
}

// NewTransformerBlock makes a TransformerBlock with children ln1, attn, ln2 and mlp (0, 1, 2), and drop1 and drop2 if there is dropout.
func NewTransformerBlock(dim, heads int64, o TransformerConfig) *TransformerBlock {
	b := &TransformerBlock{}
	part := func(list *[]Layer, name string, l Layer) {
		b.Child(name, l)
		*list = append(*list, l)
	}
	part(&b.attention, "ln1", NewLayerNorm([]int64{dim}, LayerNormConfig{}))
	part(&b.attention, "attn", NewCausalSelfAttention(dim, heads))
	part(&b.perceptron, "ln2", NewLayerNorm([]int64{dim}, LayerNormConfig{}))
	part(&b.perceptron, "mlp", NewSequential(NewLinear(dim, 4*dim), NewGELUTanh(), NewLinear(4*dim, dim)))
	if o.Dropout != 0 {
		part(&b.attention, "drop1", NewDropout(o.Dropout))
		part(&b.perceptron, "drop2", NewDropout(o.Dropout))
	}
	return b
}

// Forward adds the two parts to x.
func (b *TransformerBlock) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	mark := c.Mark()
	for _, part := range [][]Layer{b.attention, b.perceptron} {
		x = c.Add(x, c.Run(x, part...))
		c.Release(mark, x)
	}
	return x
}
