package nn_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"penstock/internal/torchtest"
	"penstock/nn"
	"penstock/torch"
)

// plan is a model of the property tests: it can be built with skips, and run without.
type plan struct {
	kind          kind
	stashes, pops []nn.SkipKey
	absent, aside bool // stashes nil; stashes something else than its input
	multiply      bool // by what it pops, instead of adding it
	children      []*plan
}

type kind int

const (
	module     kind = iota // stashes, runs its children, pops
	sequential             // runs its children
	rectifier              // works in place
)

// Keys are few, so that they meet.
var apart = nn.NewNamespace()

func drawPlans(t *rapid.T, from []kind, most, depth int) []*plan {
	var out []*plan
	for range rapid.SampledFrom([]int{most, most - 1, most - 2, 1}).Draw(t, "children") {
		p := &plan{kind: rapid.SampledFrom(from).Draw(t, "kind")}
		if p.kind == sequential || p.kind == module && depth > 0 && rapid.Bool().Draw(t, "has children") {
			inner := []kind{module, module, rectifier}
			if depth > 1 {
				inner = append(inner, sequential)
			}
			p.children = drawPlans(t, inner, 3, depth-1)
		}
		p.absent = rapid.IntRange(0, 5).Draw(t, "absent") == 0
		p.aside, p.multiply = rapid.Bool().Draw(t, "aside"), rapid.Bool().Draw(t, "multiply")
		out = append(out, p)
	}
	return out
}

// drawModel draws a model and what it declares: anything if wild, else what is valid.
func drawModel(t *rapid.T, wild bool) *plan {
	root := &plan{kind: sequential, children: drawPlans(t, []kind{module, module, module, sequential, rectifier}, 6, 2)}
	var modules []*plan
	begin, end := map[*plan]int{}, map[*plan]int{}
	var number func(p *plan)
	number = func(p *plan) {
		begin[p] = len(begin) + len(end)
		if p.kind == module {
			modules = append(modules, p)
		}
		for _, child := range p.children {
			number(child)
		}
		end[p] = len(begin) + len(end)
	}
	number(root)
	if len(modules) == 0 {
		return root
	}
	used := map[nn.SkipKey]bool{}
	for range rapid.IntRange(1, 8).Draw(t, "skips") {
		key := nn.SkipKey{Name: rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "name")}
		if rapid.Bool().Draw(t, "apart") {
			key.Namespace = apart
		}
		from := modules[rapid.IntRange(0, len(modules)-1).Draw(t, "from")]
		var to []*plan
		for range rapid.SampledFrom([]int{1, 2, 3, 0}).Draw(t, "pops") {
			p := modules[len(modules)-1-rapid.IntRange(0, len(modules)-1).Draw(t, "to")]
			if wild || p != from && begin[from] < end[p] && !named(p.pops, key.Name) && !slices.Contains(to, p) {
				to = append(to, p)
			}
		}
		if !wild && (len(to) == 0 || used[key] || named(from.stashes, key.Name)) {
			continue
		}
		used[key] = true
		if !wild || rapid.IntRange(0, 5).Draw(t, "forget") > 0 {
			from.stashes = append(from.stashes, key)
		}
		for _, p := range to {
			p.pops = append(p.pops, key)
		}
	}
	return root
}

func named(list []nn.SkipKey, name string) bool {
	return slices.ContainsFunc(list, func(k nn.SkipKey) bool { return k.Name == name })
}

// valid plays what the modules declare, in the order of a forward.
func (p *plan) valid() bool {
	popped, ok := map[nn.SkipKey]bool{}, true // by key stashed
	var play func(p *plan)
	play = func(p *plan) {
		for i, k := range p.stashes {
			_, before := popped[k]
			ok = ok && !before && !named(p.stashes[:i], k.Name)
			popped[k] = false
		}
		for _, child := range p.children {
			play(child)
		}
		for i, k := range p.pops {
			_, there := popped[k]
			ok = ok && there && !named(p.pops[:i], k.Name) && !slices.Contains(p.stashes, k)
			popped[k] = true
		}
	}
	play(p)
	for _, done := range popped {
		ok = ok && done
	}
	return ok
}

func (p *plan) build() nn.Layer {
	var children []nn.Layer
	for _, child := range p.children {
		children = append(children, child.build())
	}
	switch p.kind {
	case sequential:
		return nn.NewSequential(children...)
	case rectifier: // what it gives is saved for the backward, so that it must not be followed by another
		return nn.NewSequential(nn.NewReLUInPlace(), doing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.MulScalar(x, 0.75) }))
	}
	l := doing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		return p.run(c, x, func(x *torch.Tensor) *torch.Tensor { return c.Run(x, children...) },
			func(k nn.SkipKey, t *torch.Tensor) { c.Stash(k.Name, t) }, func(k nn.SkipKey) *torch.Tensor { return c.Pop(k.Name) })
	})
	for _, space := range []nn.Namespace{apart, {}} { // Isolate moves all that is there
		for list, declare := range map[*[]nn.SkipKey]func(...string){&p.stashes: l.Stashes, &p.pops: l.Pops} {
			for _, k := range *list {
				if k.Namespace == space {
					declare(k.Name)
				}
			}
		}
		if space == apart {
			l.Isolate(apart)
		}
	}
	for i, child := range children {
		l.Child(fmt.Sprint(i), child)
	}
	return l
}

// plain runs the model with a map for the skips.
func (p *plan) plain(c *nn.Ctx, x *torch.Tensor, skips map[nn.SkipKey]*torch.Tensor) *torch.Tensor {
	if p.kind == rectifier {
		return c.MulScalar(c.ReLU(x), 0.75)
	}
	return p.run(c, x, func(x *torch.Tensor) *torch.Tensor {
		for _, child := range p.children {
			x = child.plain(c, x, skips)
		}
		return x
	}, func(k nn.SkipKey, t *torch.Tensor) { skips[k] = t }, func(k nn.SkipKey) *torch.Tensor { return skips[k] })
}

// run is the forward of a module. It saves nothing for the backward that a rectifier may overwrite.
func (p *plan) run(c *nn.Ctx, x *torch.Tensor, inner func(*torch.Tensor) *torch.Tensor, stash func(nn.SkipKey, *torch.Tensor), pop func(nn.SkipKey) *torch.Tensor) *torch.Tensor {
	for _, k := range p.stashes {
		switch {
		case p.absent:
			stash(k, nil)
		case p.aside:
			stash(k, c.AddScalar(x, 0.5))
		default:
			stash(k, x)
		}
	}
	x = inner(x)
	for _, k := range p.pops {
		skip := pop(k)
		switch {
		case skip == nil:
		case p.multiply:
			x = c.Mul(x, skip)
		default:
			x = c.Add(x, skip)
		}
	}
	return x
}

// play runs f on an input, and backward if the context records: the output and the input's gradient.
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

// compare holds a way to run the model against the plain one: the output to the bit, the gradient to the order of its sums.
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

// Whoever runs a model in parts gives each a store and carries what leaves one to those that pop it. The parts know nothing else of each other.
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
	routes, err := model.SkipRoutes()
	if err != nil {
		t.Fatal(err)
	}
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
