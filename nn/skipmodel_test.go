package nn_test

import (
	"fmt"
	"slices"

	"pgregory.net/rapid"

	"penstock.example/nn"
	"penstock.example/torch"
)

// plan is a model of the property tests: it can be built with skips, and run without.
type plan struct {
	kind          kind
	stashes, pops []nn.SkipKey
	absent, aside bool // stashes nil; stashes something else than its input
	multiply      bool // by what it pops, instead of adding it
	children      []*plan
	checkpoints   int // around it, each in the next
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
	l := p.bare()
	for range p.checkpoints {
		l = nn.Checkpointed(l)
	}
	return l
}

func (p *plan) bare() nn.Layer {
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
