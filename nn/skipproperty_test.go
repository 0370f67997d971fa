package nn_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	_ "penstock.example/internal/draws" // sets the number of draws
	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/torch"
)

// play runs f on an input, and backward if the context records: the output and the input's
// gradient.
func play(c *torch.Ctx, f forward) map[string][]float32 {
	c.SetSeed(3)
	x := c.Normal_(c.Empty(torch.Float32, 2, 3), 0, 1).SetRequiresGrad(true)
	y := f(nn.NewCtx(c, nn.Config{}), c.MulScalar(x, 1.5))
	out := map[string][]float32{"output": torch.Values[float32](y)}
	if c.Grad() {
		c.Backward([]*torch.Tensor{y}, []*torch.Tensor{c.OnesLike(y)}, false)
		out["input"] = torch.Values[float32](c.GradOf(x))
		x.SetGradOf(nil)
	}
	return out
}

// compare holds a way to run the model against the plain one: the output to the bit, the gradient
// to the order of its sums.
func compare(t *rapid.T, grad bool, plain *plan, f forward) {
	c := torch.NewCtx(torch.Options{Grad: grad, Threads: 1})
	defer c.Close()
	want := play(c, func(n *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		return plain.plain(n, x, map[nn.SkipKey]*torch.Tensor{})
	})
	got := play(c, f)
	if !slices.Equal(got["output"], want["output"]) {
		t.Fatalf("the output is %v, want %v", got["output"], want["output"])
	}
	if d := differs(got, want, 1e-5); d != "" {
		t.Fatal(d)
	}
}

func TestVerifySkipsAgreesWithAPlayOfTheModel(t *testing.T) {
	torchtest.Check(t)
	rapid.Check(t, func(t *rapid.T) {
		wild := rapid.Bool().Draw(t, "wild")
		p := drawModel(t, wild)
		model := p.build().(*nn.Sequential)
		err := nn.VerifySkips(model)
		if (err == nil) != p.valid() || !wild && err != nil {
			t.Fatalf("valid: %v, got %v", p.valid(), err)
		}
		if err == nil {
			compare(t, rapid.Bool().Draw(t, "grad"), p, model.Forward)
		}
	})
}

// Whoever runs a model in parts gives each a store and carries what leaves one to those that pop
// it. The parts know nothing else of each other.
func TestPartsOfAModelGiveWhatTheWholeGives(t *testing.T) {
	torchtest.Check(t)
	rapid.Check(t, func(t *rapid.T) {
		p := drawModel(t, false)
		model := p.build().(*nn.Sequential)
		layers := model.Layers()
		cuts := []int{0}
		for i := 1; i < len(layers); i++ {
			if rapid.Bool().Draw(t, "cut") {
				cuts = append(cuts, i)
			}
		}
		cuts = append(cuts, len(layers))
		compare(t, rapid.Bool().Draw(t, "grad"), p, func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			return runInParts(t, c, model, cuts, x)
		})
	})
}

func runInParts(t *rapid.T, c *nn.Ctx, model *nn.Sequential, cuts []int, x *torch.Tensor) *torch.Tensor {
	routes := must.Get(model.SkipRoutes())(t)
	layers, stores := model.Layers(), make([]*nn.SkipStore, len(cuts)-1)
	for i := range stores {
		stores[i] = nn.NewSkipStore(routes, cuts[i], cuts[i+1])
		defer stores[i].Free()
	}
	xs := []*torch.Tensor{x}
	for i, store := range stores {
		part := nn.NewCtx(c.Ctx, nn.Config{Skips: store})
		for _, l := range layers[cuts[i]:cuts[i+1]] {
			xs = part.RunNamed(l, xs)
		}
		for _, r := range routes {
			if r.Stash < cuts[i] || r.Stash >= cuts[i+1] {
				continue
			}
			skip := store.Take(part, r.Key) // nil where no pop is outside
			for _, pop := range r.Pops {
				if pop < cuts[i+1] {
					continue
				}
				own, to := (*torch.Tensor)(nil), slices.IndexFunc(cuts, func(cut int) bool { return cut > pop })-1
				switch {
				case skip == nil:
				case to == i+1:
					own = c.Keep(c.Branch(skip))
				default: // the parts between do not know that it is to be popped
					own = c.Keep(c.Clone(skip))
				}
				stores[to].Give(r.Key, own)
			}
			skip.Free()
		}
	}
	return xs[0]
}
