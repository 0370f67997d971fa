package models

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"penstock.example/nn"
	"penstock.example/torch"
)

// Sampling says how Generate chooses tokens. The zero value takes the most likely one.
type Sampling struct {
	Temperature float64 // divides the logits; 0 takes the most likely token
	TopK        int     // draw among this number of most likely tokens; 0 is all
	Seed        uint64
	Stop        []int64 // tokens that end the text
}

// Generate continues a prompt with at most n tokens of a text model whose parameters are on c's
// device. It calls emit for each token and returns after the last, or before if the model chooses a
// token of Stop, or if emit or ctx fails. A token of Stop is not emitted. The same seed gives the
// same tokens.
func Generate(ctx context.Context, c *torch.Ctx, m nn.Layer, prompt []int64, n int, o Sampling,
	emit func(token int64) error) error {
	if len(prompt) == 0 {
		return fmt.Errorf("models: Generate: the prompt has no tokens; want at least one")
	}
	cache := &nn.Cache{}
	defer cache.Close()
	next := prompt
	for i := range n {
		if err := ctx.Err(); err != nil {
			return err
		}
		var logits []float32
		err := torch.Try(func() {
			c.NoGrad(func() {
				mark := c.Mark()
				defer c.Release(mark)
				tokens := int64(len(next))
				y := m.Forward(nn.NewCtx(c, nn.Config{Cache: cache}), torch.From(c, next, 1, tokens))
				last := c.To(c.Narrow(y, 2, tokens-1, 1), torch.Float32) // of [1, classes, T]
				logits = torch.Values[float32](last)
				cache.Advance(tokens)
			})
		})
		if err != nil {
			return err
		}
		token := o.choose(logits, torch.Mix(o.Seed, uint64(i)))
		if slices.Contains(o.Stop, token) {
			return nil
		}
		if err := emit(token); err != nil {
			return err
		}
		next = []int64{token}
	}
	return nil
}

// choose draws a token by the probabilities softmax(logits / Temperature).
func (o Sampling) choose(logits []float32, random uint64) int64 {
	order := make([]int64, len(logits))
	for i := range order {
		order[i] = int64(i)
	}
	if o.Temperature == 0 {
		return slices.MinFunc(order, func(a, b int64) int { return cmp.Compare(logits[b], logits[a]) })
	}
	slices.SortStableFunc(order, func(a, b int64) int { return cmp.Compare(logits[b], logits[a]) })
	if o.TopK > 0 {
		order = order[:min(o.TopK, len(order))]
	}
	weights, total := make([]float64, len(order)), 0.0
	for i, token := range order {
		weights[i] = math.Exp(float64(logits[token]-logits[order[0]]) / o.Temperature)
		total += weights[i]
	}
	at := float64(random>>11) / (1 << 53) * total
	for i, w := range weights {
		if at -= w; at < 0 {
			return order[i]
		}
	}
	return order[0]
}
