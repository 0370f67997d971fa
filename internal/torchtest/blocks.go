package torchtest

import (
	"fmt"

	"penstock.example/nn"
)

// SelfAttention makes multi-head self-attention: [N, T, dim] to the same.
func SelfAttention(dim, heads int64, causal bool) *nn.Sequential {
	s := nn.NewSequential().Add("qkv", nn.NewLinear(dim, 3*dim))
	for _, l := range nn.NewDotProductAttention(dim, heads, causal, 0) {
		s.Add(l.Name, l.Layer)
	}
	return s.Add("proj", nn.NewLinear(dim, dim))
}

// TransformerBlock makes GPT-2's block: [N, T, dim] to the same.
func TransformerBlock(dim, heads int64, dropout float64) *nn.Sequential {
	s := nn.NewSequential()
	mlp := nn.NewSequential(nn.NewLinear(dim, 4*dim), nn.NewGELUTanh(), nn.NewLinear(4*dim, dim))
	for i, part := range []nn.NamedLayer{{Name: "attn", Layer: SelfAttention(dim, heads, true)},
		{Name: "mlp", Layer: mlp}} {
		number := fmt.Sprint(i + 1)
		norm := nn.NamedLayer{Name: "ln" + number, Layer: nn.NewLayerNorm([]int64{dim}, nn.NormConfig{})}
		path := []nn.NamedLayer{norm, part}
		if dropout != 0 {
			path = append(path, nn.NamedLayer{Name: "drop" + number, Layer: nn.NewDropout(dropout)})
		}
		s.AddResidual(number, path...)
	}
	return s
}
