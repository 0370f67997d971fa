package models

import (
	"strconv"

	"penstock.example/nn"
)

// decoder has the sizes of a decoder of the Llama family.
type decoder struct {
	attention nn.AttentionConfig // all norms have its Eps
	vocab     int64
	depth     int
	hidden    int64 // of the feed-forward
	tied      bool  // the head's weight is the tokens' embedding
}

// build makes model.embed_tokens, model.layers.0, ..., model.norm, lm_head, with Hugging Face's
// names (Touvron et al. 2023, "LLaMA", section 2.2). A balance may cut inside blocks.
func (d decoder) build() *nn.Sequential {
	width := d.attention.Dim
	norm := func() nn.Layer { return nn.NewRMSNorm([]int64{width}, nn.NormConfig{Eps: d.attention.Eps}) }
	blocks := nn.NewSequential()
	for i := range d.depth {
		blocks.Add(strconv.Itoa(i), nn.NewSequential().
			AddResidual("1", nn.NamedLayer{Name: "input_layernorm", Layer: norm()},
				nn.NamedLayer{Name: "self_attn",
					Layer: addAll(nn.NewSequential(), nn.NewGroupedAttention(d.attention))}).
			AddResidual("2", nn.NamedLayer{Name: "post_attention_layernorm", Layer: norm()},
				nn.NamedLayer{Name: "mlp", Layer: nn.NewSwiGLU(width, d.hidden)}))
	}
	tokens := nn.NewEmbedding(d.vocab, width, nn.EmbeddingConfig{})
	body := nn.NewSequential().
		Add("embed_tokens", tokens).
		Add("layers", blocks).
		Add("norm", norm())
	head := nn.NewLinearNoBias(width, d.vocab)
	if d.tied {
		head = nn.NewLinearShared(tokens.Weight, false)
	}
	s := nn.NewSequential().Add("model", body).Add("lm_head", newVocabularyHead(nil, "", head))
	for _, p := range nn.Params(s) {
		if len(p.Shape()) == 2 {
			p.SetInit(nn.Normal(0.02))
		}
	}
	return s
}
