package models

import (
	"fmt"
	"strconv"

	"penstock.example/nn"
)

// gpt2s are the four sizes of GPT-2 (Radford et al. 2019, table 2), with the parameters' names and
// layouts in Hugging Face's GPT2Model, so that its weights fit.
var gpt2s = []model{
	gpt2("gpt2", 12, 768, 12), gpt2("gpt2-medium", 24, 1024, 16),
	gpt2("gpt2-large", 36, 1280, 20), gpt2("gpt2-xl", 48, 1600, 25),
}

func gpt2(name string, depth, width, heads int) model {
	return model{
		Info: Info{
			Name: name,
			Summary: fmt.Sprintf("GPT-2 with Hugging Face's names: %d blocks of %d heads, %d wide", depth,
				heads, width),
			Kind: Text, Input: []int64{1024},
			Defaults: Options{Classes: 50257, Width: width, Depth: depth, Heads: heads, Context: 1024,
				Dropout: 0.1},
		},
		dropout: true,
		build:   func(o Options) (*nn.Sequential, error) { return buildGPT2(o, ""), nil },
	}
}

// buildGPT2 makes wte, wpe, drop, h.0, h.1, ..., ln_f under a name, which may be empty, and
// lm_head. A balance may cut inside blocks.
func buildGPT2(o Options, body string) *nn.Sequential {
	width := int64(o.Width)
	tokens := nn.NewEmbedding(int64(o.Classes), width, nn.EmbeddingConfig{})
	s := nn.NewSequential().
		Add("wte", tokens).
		Add("wpe", newAddParam("weight", int64(o.Context), width))
	addDropout(s, "drop", o.Dropout)
	blocks := nn.NewSequential()
	for i := range o.Depth {
		blocks.Add(strconv.Itoa(i), gpt2Block(width, int64(o.Heads), o.Dropout))
	}
	s.Add("h", blocks).
		Add("ln_f", nn.NewLayerNorm([]int64{width}, nn.NormConfig{}))
	if body != "" {
		s = nn.NewSequential().Add(body, s)
	}
	s.Add("lm_head", newVocabularyHead(nil, "", nn.NewLinearShared(tokens.Weight, false)))
	return gptInit(s, o.Depth, ".c_proj.weight")
}

// gpt2Block is gptBlock with Hugging Face's names, with weights [in, out], and with dropout also of
// the attention's weights.
func gpt2Block(width, heads int64, dropout float64) *nn.Sequential {
	attn := nn.NewSequential().Add("c_attn", nn.NewLinearTransposed(width, 3*width))
	addAll(attn, nn.NewDotProductAttention(width, heads, true, dropout)).
		Add("c_proj", nn.NewLinearTransposed(width, width))
	addDropout(attn, "resid_dropout", dropout)
	mlp := nn.NewSequential().
		Add("c_fc", nn.NewLinearTransposed(width, 4*width)).
		Add("act", nn.NewGELUTanh()).
		Add("c_proj", nn.NewLinearTransposed(4*width, width))
	addDropout(mlp, "dropout", dropout)
	return transformerBlock(nn.NormConfig{}, width, "_", "attn", attn, mlp, 0)
}
