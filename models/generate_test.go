package models_test

import (
	"path/filepath"
	"slices"
	"testing"

	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/torch"
)

// TestGenerateAsWithoutCache: with the cache of keys and values the tokens are those that a forward of
// the whole text makes most likely, and drawn ones are the same for the same seed alone.
func TestGenerateAsWithoutCache(t *testing.T) {
	for _, name := range []string{"gpt", "gpt2", "llama", "llama-tied", "mistral", "qwen2", "qwen3"} {
		t.Run(name, func(t *testing.T) {
			c := torchtest.New(t, torch.Options{})
			o, from := models.Options{}, name
			if name == "gpt" {
				o = models.Options{Classes: 50, Width: 24, Heads: 3, Depth: 2, Context: 32}
			} else {
				from = filepath.Join("testdata", "folders", name)
			}
			s := build(t, from, o)
			t.Cleanup(func() { nn.Free(s) })
			nn.Materialise(c, nn.State(s), 1)
			for _, p := range nn.Params(s) { // spread, so that texts do not repeat one token
				c.NoGrad(func() { c.MulScalar_(p.Tensor(), 3) })
			}
			generate := func(sampling models.Sampling) (text []int64) {
				must.Do(t, models.Generate(t.Context(), c, s, []int64{3, 1, 4, 1, 5}, 12, sampling,
					func(token int64) error { text = append(text, token); return nil }))
				return text
			}
			got := generate(models.Sampling{})
			text := []int64{3, 1, 4, 1, 5}
			for i, token := range got {
				mark := c.Mark()
				y := s.Forward(nn.NewCtx(c, nn.Config{}), torch.From(c, text, 1, int64(len(text))))
				last := c.Narrow(y, 2, int64(len(text))-1, 1)
				if want := torch.Item[int64](c.Argmax(c.Reshape(last, -1), 0)); token != want {
					t.Fatalf("token %d is %d, want %d", i, token, want)
				}
				text = append(text, token)
				c.Release(mark)
			}
			if len(got) != 12 {
				t.Errorf("%d tokens, want 12", len(got))
			}
			if len(slices.Compact(slices.Clone(got))) < 2 {
				t.Errorf("the text says little: %v", got)
			}
			stopped := generate(models.Sampling{Stop: got[2:3]})
			if at := slices.Index(got, got[2]); !slices.Equal(stopped, got[:at]) {
				t.Errorf("stopped before %d: %v of %v", got[2], stopped, got)
			}
			drawn := models.Sampling{Temperature: 5, TopK: 20, Seed: 7}
			first := generate(drawn)
			again := generate(drawn)
			drawn.Seed++
			if other := generate(drawn); !slices.Equal(first, again) || slices.Equal(first, other) {
				t.Errorf("drawn %v, again %v, with another seed %v", first, again, other)
			}
		})
	}
}
