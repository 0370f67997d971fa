package nn

import "penstock.example/torch"

// NewTransformerBlock makes the layers of GPT-2's block, normalised before each part (Radford et
// al. 2019, section 2.3): [N, T, dim] to the same.
//
//	x = x + drop1(attn(ln1(x)))      attn is NewSelfAttention, causal
//	x = x + drop2(mlp(ln2(x)))       mlp is Linear(dim, 4 dim), GELU (tanh), Linear(4 dim, dim)
//
// x goes around each part as a skip connection, in a namespace of the block's own. Children are
// those named above, drop1 and drop2 only with a dropout of more than 0, with skip1, add1, skip2 and add2
// around the parts. A partition may cut between any two layers, and a plan of what to recompute may
// keep what lies there.
func NewTransformerBlock(dim, heads int64, dropout float64) *Sequential {
	s := NewSequential()
	part := func(number, name string, l *Sequential) {
		s.Add("skip"+number, NewStash("skip"+number)).
			Add("ln"+number, NewLayerNorm([]int64{dim}, NormConfig{})).
			Add(name, l)
		if dropout != 0 {
			s.Add("drop"+number, NewDropout(dropout))
		}
		s.Add("add"+number, NewAddSkip("skip"+number))
	}
	part("1", "attn", NewSelfAttention(dim, heads, true))
	part("2", "mlp", NewSequential(NewLinear(dim, 4*dim), NewGELUTanh(), NewLinear(4*dim, dim)))
	s.Isolate(NewNamespace())
	return s
}

// addSkip adds a skip connection to its input, in place. What comes before must not need its output
// to compute its gradient; Linear, Conv2d, BatchNorm and Dropout do not.
type addSkip struct {
	Base
	skip string
}

// NewAddSkip makes an AddSkip that pops the skip of this name.
func NewAddSkip(skip string) Layer {
	a := &addSkip{skip: skip}
	a.Pops(skip)
	return a
}

// Forward returns x. Under autocast x is bfloat16 and the skip is not, and the sum, which is of the
// skip's type, is new.
func (a *addSkip) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	mark := c.Mark()
	skip := c.Pop(a.skip)
	if x.DType() == skip.DType() {
		c.Add_(x, skip, 1)
	} else {
		x = c.Add(skip, x)
	}
	c.Release(mark, x)
	return x
}

func (a *addSkip) OverwritesInput() bool { return true }
