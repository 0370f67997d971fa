package models

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"penstock.example/nn"
	"penstock.example/torch"
)

var gpts = []model{{
	Info: Info{
		Name: "gpt", Summary: "GPT-2's decoder over bytes: 4 blocks of 4 heads, 128 wide, learned positions",
		Kind: Text, Input: []int64{128},
		Defaults: Options{Classes: 256, Width: 128, Depth: 4, Heads: 4, Context: 128},
	},
	dropout: true,
	build:   gpt,
}}

// gpt is embed, blocks.0, blocks.1, ..., head (Radford et al. 2019, section 2.3). Blocks are chains
// of layers, which a balance may cut anywhere.
func gpt(o Options) (*nn.Sequential, error) {
	width, classes := int64(o.Width), int64(o.Classes)
	blocks := nn.NewSequential()
	for i := range o.Depth {
		blocks.Add(strconv.Itoa(i), gptBlock(width, int64(o.Heads), o.Dropout))
	}
	embed := newEmbed(classes, int64(o.Context), width, o.Dropout)
	s := nn.NewSequential().
		Add("embed", embed).
		Add("blocks", blocks).
		Add("head", newVocabularyHead(nn.NewLayerNorm([]int64{width}, nn.NormConfig{}), "linear",
			nn.NewLinearShared(embed.token.Weight, false)))
	return gptInit(s, o.Depth, ".attn.proj.weight", ".mlp.2.weight"), nil
}

// gptBlock is GPT-2's block, normalised before each part: [N, T, width] to the same.
func gptBlock(width, heads int64, dropout float64) *nn.Sequential {
	attn := nn.NewSequential().Add("qkv", nn.NewLinear(width, 3*width))
	addAll(attn, nn.NewDotProductAttention(width, heads, true, 0)).Add("proj", nn.NewLinear(width, width))
	mlp := nn.NewSequential(nn.NewLinear(width, 4*width), nn.NewGELUTanh(), nn.NewLinear(4*width, width))
	return transformerBlock(nn.NormConfig{}, width, "", "attn", attn, mlp, dropout)
}

// gptInit sets the initialisers of OpenAI's code: zero for biases, normal with standard deviation
// 0.02 for weights. For the last weights of residual paths, whose names end in one of ends, the
// deviation is divided by the square root of the number of paths.
func gptInit(s *nn.Sequential, depth int, ends ...string) *nn.Sequential {
	const std = 0.02
	for _, p := range nn.Params(s) {
		switch {
		case slices.ContainsFunc(ends, func(end string) bool { return strings.HasSuffix(p.Name, end) }):
			p.SetInit(nn.Normal(std / math.Sqrt(float64(2*depth))))
		case len(p.Shape()) == 2:
			p.SetInit(nn.Normal(std))
		case strings.HasSuffix(p.Name, ".bias"):
			p.SetInit(nn.Zeros)
		}
	}
	return s
}

// embed adds a vector for each token to one for its position: int64 [N, T] to [N, T, width].
type embed struct {
	nn.Base
	token    *nn.Embedding
	position *nn.Param // [context, width]
	drop     nn.Layer
}

func newEmbed(tokens, context, width int64, dropout float64) *embed {
	e := &embed{token: nn.NewEmbedding(tokens, width, nn.EmbeddingConfig{}), drop: nn.NewDropout(dropout)}
	e.Child("token", e.token)
	e.position = e.Param("position", nn.Normal(1), context, width)
	e.Child("drop", e.drop)
	return e
}

// Forward fails on sequences longer than the context.
func (e *embed) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	mark := c.Mark()
	position := c.Narrow(e.position.Tensor(), 0, c.Seen(), x.Size(1))
	y := c.Add(c.Run(x, e.token), position)
	c.Release(mark, y)
	y = c.Run(y, e.drop)
	c.Release(mark, y)
	return y
}
