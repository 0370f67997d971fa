package models

import (
	"fmt"
	"math"
	"strings"

	"penstock.example/nn"
	"penstock.example/torch"
)

// viTs are Vision Transformers (Dosovitskiy et al. 2020, "An Image is Worth 16x16 Words", table 1)
// with torchvision's names and parameters.
var viTs = []model{
	viT("vit_b_16", 16, 12, 768, 12), viT("vit_b_32", 32, 12, 768, 12),
	viT("vit_l_16", 16, 24, 1024, 16), viT("vit_l_32", 32, 24, 1024, 16),
}

func viT(name string, patch, depth, width, heads int) model {
	m := imageNet(name, fmt.Sprintf("Vision Transformer of %dx%[1]d patches, %d blocks of %d heads, %d wide "+
		"(Dosovitskiy et al. 2020)", patch, depth, heads, width),
		func(o Options) (*nn.Sequential, error) { return buildViT(name, patch, o) })
	m.Defaults.Width, m.Defaults.Depth, m.Defaults.Heads, m.dropout = width, depth, heads, true
	return m
}

// buildViT makes conv_proj, class_token, encoder, token, heads. A balance may cut inside blocks.
// The positions fix the size of images. Weights start as torchvision's; the weights of the head at
// zero.
func buildViT(name string, patch int, o Options) (*nn.Sequential, error) {
	if o.Size%patch != 0 {
		return nil, refuse(name, "Size", o.Size, "want a multiple of %d, the size of a patch", patch)
	}
	width, side := int64(o.Width), int64(o.Size/patch)
	blocks := nn.NewSequential()
	for i := range o.Depth {
		blocks.Add(fmt.Sprintf("encoder_layer_%d", i), viTBlock(width, int64(o.Heads), o.Dropout))
	}
	encoder := nn.NewSequential().Add("pos_embedding", newAddParam("", 1, side*side+1, width))
	addDropout(encoder, "dropout", o.Dropout)
	encoder.Add("layers", blocks).
		Add("ln", nn.NewLayerNorm([]int64{width}, viTNorm))
	s := nn.NewSequential().
		Add("conv_proj", nn.NewConv2d(int64(o.Channels), width, nn.Square(int64(patch)),
			nn.ConvConfig{Stride: nn.Square(int64(patch))})).
		Add("class_token", newClassToken(width, side)).
		Add("encoder", encoder).
		Add("token", &firstToken{}).
		Add("heads", nn.NewSequential().Add("head", nn.NewLinear(width, int64(o.Classes))))

	for _, p := range nn.Params(s) {
		shape := p.Shape()
		switch {
		case strings.HasPrefix(p.Name, "heads."), strings.HasSuffix(p.Name, "_proj.bias"),
			strings.HasSuffix(p.Name, "_proj_bias"):
			p.SetInit(nn.Zeros)
		case p.Name == "conv_proj.weight": // torchvision truncates at 2, dozens of standard deviations away
			p.SetInit(nn.Normal(math.Sqrt(1 / float64(shape[1]*shape[2]*shape[3]))))
		case strings.HasSuffix(p.Name, "_proj_weight"), strings.Contains(p.Name, ".mlp.") && len(shape) == 2:
			// Glorot and Bengio 2010, "Understanding the difficulty of training deep feedforward
			// neural networks", eq. 16
			p.SetInit(nn.Uniform(math.Sqrt(6 / float64(shape[1]+shape[0]))))
		case strings.Contains(p.Name, ".mlp."):
			p.SetInit(nn.Normal(1e-6))
		}
	}
	return s, nil
}

var viTNorm = nn.NormConfig{Eps: 1e-6}

// viTBlock is skip_1, ln_1, self_attention, add_1, skip_2, ln_2, mlp, add_2. The first layer of
// self_attention adds no name of its own, so that its parameters are torchvision's
// self_attention.in_proj_weight and self_attention.in_proj_bias.
func viTBlock(width, heads int64, dropout float64) *nn.Sequential {
	attention := nn.NewSequential().Add("", newInProjection(width))
	addAll(attention, nn.NewDotProductAttention(width, heads, false, 0)).
		Add("out_proj", nn.NewLinear(width, width))
	addDropout(attention, "dropout", dropout)
	mlp := nn.NewSequential().
		Add("0", nn.NewLinear(width, 4*width)).
		Add("1", nn.NewGELU())
	addDropout(mlp, "2", dropout)
	mlp.Add("3", nn.NewLinear(4*width, width))
	addDropout(mlp, "4", dropout)
	return transformerBlock(viTNorm, width, "_", "self_attention", attention, mlp, 0)
}

// inProjection makes queries, keys and values side by side: [N, T, width] to [N, T, 3 width].
type inProjection struct {
	nn.Base
	weight, bias *nn.Param
}

func newInProjection(width int64) *inProjection {
	p := &inProjection{}
	p.weight = p.Param("in_proj_weight", nn.Zeros, 3*width, width)
	p.bias = p.Param("in_proj_bias", nn.Zeros, 3*width)
	return p
}

func (p *inProjection) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	return c.Linear(x, p.weight.Tensor(), p.bias.Tensor())
}

// classToken puts a learned token before the patches: [N, width, side, side] to [N, 1 + side^2,
// width].
type classToken struct {
	nn.Base
	token *nn.Param // [1, 1, width]
	side  int64
}

func newClassToken(width, side int64) *classToken {
	t := &classToken{side: side}
	t.token = t.Param("", nn.Zeros, 1, 1, width)
	return t
}

func (t *classToken) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	mark := c.Mark()
	n, width := x.Size(0), x.Size(1)
	patches := c.Transpose(c.Reshape(x, n, width, t.side*t.side), 1, 2)
	y := c.Cat([]*torch.Tensor{c.Expand(t.token.Tensor(), n, 1, width), patches}, 1)
	c.Release(mark, y)
	return y
}

// KeepsOutput is false: the backward of a concatenation does not need the result.
func (t *classToken) KeepsOutput() bool { return false }

// firstToken takes the first token of each sequence: [N, T, width] to [N, width].
type firstToken struct{ nn.Base }

// Forward copies, so that the other tokens need not be held.
func (*firstToken) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	mark := c.Mark()
	y := c.Clone(c.Reshape(c.Narrow(x, 1, 0, 1), x.Size(0), x.Size(2)))
	c.Release(mark, y)
	return y
}
