package nn_test

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	_ "penstock.example/internal/draws" // sets the number of draws
	"penstock.example/internal/engine"
	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/torch"
)

type forward = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor

// lambda is a layer that a test writes where it needs it.
type lambda struct {
	nn.Base
	f forward
}

func (l *lambda) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return l.f(c, x) }

// declaring makes a lambda that declares skips, names separated by spaces. Its children are for f
// to run.
func declaring(stashes, pops string, f forward, children ...nn.Layer) *lambda {
	l := &lambda{f: f}
	l.Stashes(strings.Fields(stashes)...)
	l.Pops(strings.Fields(pops)...)
	for i, child := range children {
		l.Child(fmt.Sprint(i), child)
	}
	return l
}

func doing(f forward) *lambda { return declaring("", "", f) }

// composite makes a layer, no Sequential, that runs its children.
func composite(children ...nn.Layer) *lambda {
	return declaring("", "", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		return c.Run(x, children...)
	}, children...)
}

// stashing stashes its input and returns it.
func stashing(name string) *lambda {
	return declaring(name, "", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		c.Stash(name, x)
		return x
	})
}

// popping adds what it pops, if that is there.
func popping(name string) *lambda {
	return declaring("", name, func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		if skip := c.Pop(name); skip != nil {
			return c.Add(x, skip)
		}
		return x
	})
}

func isolated(space nn.Namespace, l *lambda) *lambda {
	l.Isolate(space)
	return l
}

// results are the output and all gradients, by name; a gradient that is not there is not in it.
func results(c *torch.Ctx, model *nn.Sequential, f forward) map[string][]float32 {
	c.SetSeed(5)
	x := c.Normal_(c.Empty(torch.Float32, 3, 4), 0, 1)
	up := c.Normal_(c.Empty(torch.Float32, 3, 4), 0, 1)
	x.SetRequiresGrad(true)
	y := f(nn.NewCtx(c, nn.Config{Training: true}), x)
	out := map[string][]float32{"output": torch.Values[float32](y)}
	if !c.Grad() {
		return out
	}
	c.Backward([]*torch.Tensor{y}, []*torch.Tensor{up}, false)
	note := func(name string, t *torch.Tensor) {
		if g := c.GradOf(t); g != nil {
			out[name] = torch.Values[float32](g)
		}
	}
	note("input", x)
	x.SetGradOf(nil)
	for _, p := range nn.Params(model) {
		note(p.Name, p.Tensor())
	}
	nn.ZeroGrads(model)
	return out
}

// differs names a result that is not the same to within a tolerance, relative to the largest in it.
// It returns "" where there is none.
func differs(got, want map[string][]float32, tolerance float64) string {
	if len(got) != len(want) {
		return fmt.Sprintf("%d results and %d", len(got), len(want))
	}
	for name, w := range want {
		g := got[name]
		if len(g) != len(w) {
			return fmt.Sprintf("%s: %d values and %d", name, len(g), len(w))
		}
		largest := 0.0
		for _, v := range w {
			largest = max(largest, math.Abs(float64(v)))
		}
		for i := range w {
			if d := math.Abs(float64(g[i]) - float64(w[i])); !(d <= tolerance*largest) {
				return fmt.Sprintf("%s: %v and %v", name, g[i], w[i])
			}
		}
	}
	return ""
}

// What a forward does is held against what was declared, by name, at the layer that did otherwise.
func TestSkipsAtRunTimeMustBeWhatWasDeclared(t *testing.T) {
	stash := func(declared string, names ...string) nn.Layer {
		return declaring(declared, "", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			for _, n := range names {
				c.Stash(n, x)
			}
			return x
		})
	}
	pop := func(declared string, names ...string) nn.Layer {
		return declaring("", declared, func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			for _, n := range names {
				c.Pop(n)
			}
			return x
		})
	}
	looping := func(children ...nn.Layer) nn.Layer {
		return declaring("", "", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			return c.Run(c.Run(x, children...), children...)
		}, children...)
	}
	second := pop("a", "a")
	early := declaring("", "", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Run(x, second) },
		stash("a", "a"), second)
	direct := stashing("a")
	strangers := nn.NewSequential(stash("b", "b"), pop("b", "b"))
	routesOfStrangers := must.Get(strangers.SkipRoutes())(t)
	for _, row := range []struct {
		reason string
		model  nn.Layer
		skips  *nn.SkipStore
		where  string
		want   string
	}{
		{"a stash that is not declared", nn.NewSequential(stash("a", "b", "a"), pop("a", "a")), nil, "0",
			`stash: skip "b" is not declared; call Stashes or Pops in the constructor of the module that ` +
				`is running`},
		{"a pop that is not declared", nn.NewSequential(stash("a", "a"), pop("a", "a", "b")), nil, "1",
			`pop: skip "b" is not declared; call Stashes or Pops in the constructor of the module that ` +
				`is running`},
		{"a child's Forward called past Run, which knows not who is running",
			nn.NewSequential(declaring("", "", direct.Forward, direct), pop("a", "a")), nil, "0",
			`skip "a" is not declared`},
		{"a stash that is left out", nn.NewSequential(stash("a b", "b"), pop("a b", "a", "b")), nil, "0",
			`stash: skip "a" is declared and was not stashed; stash nil if there is nothing to hand on`},
		{"a pop that is left out", nn.NewSequential(stash("a b", "a", "b"), pop("a b", "b")), nil, "1",
			`pop: skip "a" is declared and was not popped; pop it even where it is not used`},
		{"two stashes", nn.NewSequential(stash("a", "a", "a"), pop("a", "a")), nil, "0",
			`stash: skip "a" is used twice in one forward`},
		{"a child that stashes runs twice", nn.NewSequential(looping(stash("a", "a")), pop("a", "a")),
			nil, "0.0", `stash: skip "a" is stashed again before it was popped`},
		{"a child that pops runs before the one that stashes", nn.NewSequential(early), nil, "0.1",
			`pop: skip "a" has not been stashed`},
		{"a stash outside of a Sequential", stash("a", "a"), nil, "",
			`stash: skip "a" is used outside of a model; run the layer as part of an nn.Sequential`},
		{"a pop outside of a Sequential", pop("a", "a"), nil, "",
			`pop: skip "a" is used outside of a model; run the layer as part of an nn.Sequential`},
		{"a stash into another model's store", stash("a", "a"),
			new(nn.SkipStore).Begin(routesOfStrangers, 0, 2),
			"", `stash: skip "a" is not a skip of the model that is running`},
		{"a pop of what a part was not given", pop("b", "b"),
			new(nn.SkipStore).Begin(routesOfStrangers, 1, 2),
			"", `pop: skip "b" has not been stashed`},
	} {
		t.Run(row.reason, func(t *testing.T) {
			c := nn.NewCtx(torchtest.New(t, torch.Options{}), nn.Config{Skips: row.skips})
			err := torch.Try(func() {
				x := c.Ones(torch.Float32, 2)
				if _, whole := row.model.(*nn.Sequential); whole {
					row.model.Forward(c, x)
					return
				}
				c.RunNamed(nn.NamedLayer{Layer: row.model}, []*torch.Tensor{x})
			})
			if row.skips != nil {
				row.skips.Free()
			}
			if err == nil || !strings.Contains(err.Error(), row.want) || c.Path() != row.where {
				t.Errorf("got %v at %q, want %q at %q", err, c.Path(), row.want, row.where)
			}
		})
	}
}

func TestAModelWhoseSkipsDoNotMatchDoesNotRun(t *testing.T) {
	c := nn.NewCtx(torchtest.New(t, torch.Options{}), nn.Config{})
	ran := false
	model := nn.NewSequential(doing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		ran = true
		return x
	}), stashing("a"))
	err, _ := caught(func() { model.Forward(c, c.Ones(torch.Float32, 2)) }).(error)
	if err == nil || ran || !strings.Contains(err.Error(), "skip connections do not match") {
		t.Errorf("got %v, ran: %v", err, ran)
	}
}

func TestInPlaceTakesNoCopyWhereNothingIsPopped(t *testing.T) {
	const activation = 4 * 1000
	for _, row := range []struct {
		reason string
		model  *nn.Sequential
		peak   int64
	}{
		{"while the skip is another tensor", nn.NewSequential(nn.NewTanh(), stashing("a"), nn.NewTanh(),
			nn.NewReLUInPlace(), nn.NewReLUInPlace(), popping("a")), 3},
		{"after the last pop", nn.NewSequential(nn.NewTanh(), stashing("a"), declaring("", "a",
			func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				c.Pop("a")
				return x
			}), nn.NewReLUInPlace(), nn.NewReLUInPlace()), 1},
		{"a copy, once", nn.NewSequential(nn.NewTanh(), stashing("a"), nn.NewReLUInPlace(),
			nn.NewReLUInPlace(), declaring("", "a", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				return c.Add_(x, c.Pop("a"), 1)
			})), 2},
	} {
		a := newAccount(t, false)
		x := a.Ones(torch.Float32, 10, 100)
		a.start()
		row.model.Forward(nn.NewCtx(a.Ctx, nn.Config{}), x).Free()
		if a.peak() != row.peak*activation {
			t.Errorf("%s: %d bytes were live, want %d activations", row.reason, a.peak(), row.peak)
		}
	}
}

// A change that nobody declared would be in what is popped, in silence.
func TestAHiddenChangeOfASkipIsAnError(t *testing.T) {
	hidden := func() nn.Layer {
		return doing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.MulScalar_(x, 2) })
	}
	into := declaring("", "a", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		skip := c.Pop("a")
		c.NoGrad(func() { c.MulScalar_(skip, 2) })
		return c.Add(x, skip)
	})
	after := declaring("a", "", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		c.Stash("a", x)
		return c.ReLU_(x)
	})
	part := declaring("a", "", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		c.Stash("a", c.Narrow(x, 0, 1, 1))
		return x
	})
	for _, row := range []struct {
		reason, where string
		model         *nn.Sequential
	}{
		{"by the next layer", "3", nn.NewSequential(nn.NewTanh(), stashing("a"), hidden(), popping("a"))},
		{"by the layer that stashed it", "2", nn.NewSequential(nn.NewTanh(), after, popping("a"))},
		{"of the tensor that it is a view of", "3", nn.NewSequential(nn.NewTanh(), part, hidden(),
			popping("a"))},
		{"by a layer that popped it, before another does", "3", nn.NewSequential(nn.NewTanh(),
			stashing("a"), into, popping("a"))},
		{"by a child", "2.1", nn.NewSequential(nn.NewTanh(), stashing("a"), composite(hidden(),
			popping("a")))},
	} {
		t.Run(row.reason, func(t *testing.T) {
			for _, grad := range []bool{false, true} {
				c := nn.NewCtx(torchtest.New(t, torch.Options{Grad: grad}), nn.Config{})
				x := c.Ones(torch.Float32, 2, 3).SetRequiresGrad(grad)
				err := torch.Try(func() { row.model.Forward(c, x) })
				if err == nil || c.Path() != row.where || !strings.Contains(err.Error(),
					`skip "a" was overwritten in place after it was stashed; let the layer that did it `+
						`declare nn.InPlace`) {
					t.Errorf("got %v at %q, want a failure at %q", err, c.Path(), row.where)
				}
			}
		})
	}
}

// A part of a model is no less careful than the whole: with what it was given, and with what it
// gives.
func TestInPlaceInAPartOfAModel(t *testing.T) {
	hidden := doing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.MulScalar_(x, 2) })
	for _, row := range []struct {
		reason string
		second nn.Layer // of the part that pops; the skip shares memory with its input
		third  nn.Layer // of the part that stashes
		want   string   // "" is a sum of relu(-1) and -1
	}{
		{"declared", nn.NewReLUInPlace(), nn.NewIdentity(), ""},
		{"hidden, after Give", hidden, nn.NewIdentity(), `skip "a" was overwritten in place`},
		{"hidden, before Take", nn.NewReLUInPlace(), doing(hidden.f), `skip "a" was overwritten in place`},
	} {
		t.Run(row.reason, func(t *testing.T) {
			c := torchtest.New(t, torch.Options{})
			model := nn.NewSequential(stashing("a"), row.third, row.second, popping("a"))
			routes := must.Get(model.SkipRoutes())(t)
			key, l := routes[0].Key, model.Layers()
			first, second := new(nn.SkipStore).Begin(routes, 0, 2), new(nn.SkipStore).Begin(routes, 2, 4)
			defer first.Free()
			defer second.Free()
			var y *torch.Tensor
			err := torch.Try(func() {
				ctx := nn.NewCtx(c, nn.Config{Skips: first})
				xs := ctx.RunNamed(l[1],
					ctx.RunNamed(l[0], []*torch.Tensor{torch.From(c, []float32{-1, -1})}))
				second.Give(key, first.Take(ctx, key))
				ctx = nn.NewCtx(c, nn.Config{Skips: second})
				y = ctx.RunNamed(l[3], ctx.RunNamed(l[2], xs))[0]
			})
			switch {
			case row.want != "":
				if err == nil || !strings.Contains(err.Error(), row.want) {
					t.Errorf("got %v, want %q", err, row.want)
				}
			case err != nil:
				t.Error(err)
			default:
				if got := torch.Values[float32](y); got[0] != -1 || got[1] != -1 {
					t.Errorf("relu(-1) + -1 is %v", got)
				}
			}
		})
	}
}

// Without a graph nothing but the model's skips keeps an activation: what is live between two
// layers is known to the byte.
func TestASkipIsFreedAtItsLastPop(t *testing.T) {
	const activation = 4 * 1000
	var a *account
	var live []int64 // at each probe, in activations
	probe := func() nn.Layer {
		return doing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			if a.used()%activation != 0 {
				t.Errorf("%d bytes are no number of activations", a.used())
			}
			live = append(live, a.used()/activation)
			return x
		})
	}
	tanh := func() nn.Layer { return nn.NewTanh() }
	ignoring := func() nn.Layer {
		return declaring("", "a", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			c.Pop("a")
			return x
		})
	}
	for _, row := range []struct {
		reason string
		model  *nn.Sequential
		want   []int64
	}{
		{"three pops", nn.NewSequential(tanh(), stashing("a"), tanh(), popping("a"), probe(),
			popping("a"), probe(), popping("a"), probe()), []int64{2, 2, 1}},
		{"pops in children of one layer, whose input lives until it returns", nn.NewSequential(tanh(),
			stashing("a"), tanh(), composite(popping("a"), probe(), popping("a"), probe()), probe()),
			[]int64{3, 2, 1}},
		{"a pop that is not used", nn.NewSequential(tanh(), stashing("a"), tanh(), probe(), ignoring(),
			probe()), []int64{2, 1}},
		{"the input, which is the caller's", nn.NewSequential(stashing("a"), tanh(), probe(),
			popping("a"), probe()), []int64{1, 1}},
		{"a layer frees what it popped when it has used it", nn.NewSequential(tanh(), stashing("a"),
			tanh(), declaring("", "a", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				skip := c.Pop("a")
				y := c.Mul(x, skip)
				skip.Free()
				live = append(live, a.used()/activation)
				return y
			}), probe()), []int64{2, 1}},
	} {
		t.Run(row.reason, func(t *testing.T) {
			a, live = newAccount(t, false), nil
			x := a.Ones(torch.Float32, 10, 100)
			a.start()
			y := row.model.Forward(nn.NewCtx(a.Ctx, nn.Config{}), x)
			if !slices.Equal(live, row.want) {
				t.Errorf("%v activations are live, want %v", live, row.want)
			}
			if a.used() != activation {
				t.Errorf("%d bytes are live at the end, want the output's %d", a.used(), activation)
			}
			y.Free()
			if a.used() != 0 {
				t.Errorf("%d bytes are left", a.used())
			}
		})
	}
}

// Wherever a layer panics, and with whatever, the skips that were under way are freed, and the
// model runs again.
func TestAPanicLeavesNoSkip(t *testing.T) {
	type userPanic struct{}
	const places = 9
	for _, failure := range []any{userPanic{}, &torch.Error{Op: "Forward"}} {
		for _, own := range []bool{true, false} {
			for at := range places {
				t.Run(fmt.Sprintf("%T at %d, store given: %v", failure, at, !own), func(t *testing.T) {
					a := newAccount(t, true)
					place, armed := 0, true
					fail := func() {
						if place++; armed && place == at+1 {
							panic(failure)
						}
					}
					failing := func() nn.Layer {
						return doing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { fail(); return x })
					}
					stash := declaring("b", "", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
						fail()
						c.Stash("b", c.Op("aten::tanh", x))
						fail()
						return x
					})
					pop := declaring("", "a b", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
						fail()
						x = c.Add(x, c.Pop("b"))
						fail()
						return c.Add(x, c.Pop("a"))
					})
					model := nn.NewSequential(nn.NewTanh(), stashing("a"), failing(), composite(failing(),
						stash), nn.NewSequential(failing(), popping("a")), pop, failing(), popping("b"),
						failing())
					x := a.Ones(torch.Float32, 10, 10).SetRequiresGrad(true)
					a.start()
					run := func() {
						if own {
							model.Forward(nn.NewCtx(a.Ctx, nn.Config{}), x)
							return
						}
						routes := must.Get(model.SkipRoutes())(t)
						store := new(nn.SkipStore).Begin(routes, 0, len(model.Layers()))
						defer store.Free()
						c, xs := nn.NewCtx(a.Ctx, nn.Config{Skips: store}), []*torch.Tensor{x}
						for _, l := range model.Layers() {
							xs = c.RunNamed(l, xs)
						}
					}
					mark := a.Mark()
					if got := caught(run); got != failure {
						t.Fatalf("got %v", got)
					}
					a.Release(mark)
					if a.used() != 0 {
						t.Errorf("%d bytes are left", a.used())
					}
					armed = false
					if got := caught(run); got != nil {
						t.Errorf("the next run fails with %v", got)
					}
					if place -= at + 1; place != places {
						t.Errorf("%d places to fail at, not %d", place, places)
					}
				})
			}
		}
	}
}

// caught is what f panics with.
func caught(f func()) (what any) {
	defer func() { what = recover() }()
	f()
	return nil
}

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
			inner := []kind{module, module}
			if slices.Contains(from, rectifier) {
				inner = append(inner, rectifier)
			}
			if depth > 1 {
				inner = append(inner, sequential)
			}
			p.children = drawPlans(t, inner, 3, depth-1)
		}
		p.absent = rapid.IntRange(0, 5).Draw(t, "absent") == 0
		p.aside, p.multiply = rapid.Bool().Draw(t, "aside"), rapid.Bool().Draw(t, "multiply")
		if !slices.Contains(from, rectifier) { // which overwrites what a checkpoint's backward needs
			p.checkpoints = max(0, rapid.IntRange(-2, 2).Draw(t, "checkpoints"))
		}
		out = append(out, p)
	}
	return out
}

// drawModel draws a model and what it declares: anything if wild, else what is valid.
func drawModel(t *rapid.T, wild bool) *plan {
	kinds := []kind{module, module, module, sequential}
	if rapid.Bool().Draw(t, "in place") {
		kinds = append(kinds, rectifier)
	}
	root := &plan{kind: sequential, children: drawPlans(t, kinds, 6, 2)}
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
			if wild || p != from && begin[from] < end[p] && !named(p.pops, key.Name) &&
				!slices.Contains(to, p) {
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
	root.checkpointWhole(root.uses())
	return root
}

// checkpointWhole takes the checkpoints from parts that do not have both ends of their skips.
func (p *plan) checkpointWhole(all map[nn.SkipKey]int) {
	for key, n := range p.uses() {
		if n != all[key] {
			p.checkpoints = 0
		}
	}
	for _, child := range p.children {
		child.checkpointWhole(all)
	}
}

// uses counts the stashes and pops of each skip.
func (p *plan) uses() map[nn.SkipKey]int {
	out := map[nn.SkipKey]int{}
	for _, key := range slices.Concat(p.stashes, p.pops) {
		out[key]++
	}
	for _, child := range p.children {
		for key, n := range child.uses() {
			out[key] += n
		}
	}
	return out
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
		return nn.NewSequential(nn.NewReLUInPlace(), doing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			return c.MulScalar(x, 0.75)
		}))
	}
	l := doing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		return p.run(c, x, func(x *torch.Tensor) *torch.Tensor { return c.Run(x, children...) },
			func(k nn.SkipKey, t *torch.Tensor) { c.Stash(k.Name, t) },
			func(k nn.SkipKey) *torch.Tensor { return c.Pop(k.Name) })
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
		return c.MulScalar(c.Op("penstock::relu", x), 0.75)
	}
	return p.run(c, x, func(x *torch.Tensor) *torch.Tensor {
		for _, child := range p.children {
			x = child.plain(c, x, skips)
		}
		return x
	}, func(k nn.SkipKey, t *torch.Tensor) { skips[k] = t },
		func(k nn.SkipKey) *torch.Tensor { return skips[k] })
}

// run is the forward of a module. It saves nothing for the backward that a rectifier may overwrite.
func (p *plan) run(c *nn.Ctx, x *torch.Tensor, inner func(*torch.Tensor) *torch.Tensor,
	stash func(nn.SkipKey, *torch.Tensor), pop func(nn.SkipKey) *torch.Tensor) *torch.Tensor {
	for _, k := range p.stashes {
		switch {
		case p.absent:
			stash(k, nil)
		case p.aside:
			stash(k, c.Op("aten::add.Scalar", x, 0.5))
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

// play runs f on an input, and backward if the context records: the output and the input's
// gradient.
func play(c *torch.Ctx, f forward) map[string][]float32 {
	c.SetSeed(3)
	x := c.Normal_(c.Empty(torch.Float32, 2, 3), 0, 1).SetRequiresGrad(true)
	y := f(nn.NewCtx(c, nn.Config{}), c.MulScalar(x, 1.5))
	out := map[string][]float32{"output": torch.Values[float32](y)}
	if c.Grad() {
		c.Backward([]*torch.Tensor{y}, []*torch.Tensor{c.Op("aten::ones_like", y)}, false)
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
		stores[i] = new(nn.SkipStore).Begin(routes, cuts[i], cuts[i+1])
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
				own, to := (*torch.Tensor)(nil),
					slices.IndexFunc(cuts, func(cut int) bool { return cut > pop })-1
				switch {
				case skip == nil:
				case to == i+1:
					own = c.Keep(engine.Branch(c.Ctx, skip))
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

// plainly declares skips and is never run.
func plainly(stashes, pops string, children ...nn.Layer) *lambda {
	return declaring(stashes, pops, nil, children...)
}

func problems(t *testing.T, model *nn.Sequential) []string {
	t.Helper()
	err := nn.VerifySkips(model)
	if err == nil {
		return nil
	}
	text, ok := strings.CutPrefix(err.Error(), "nn: the model's skip connections do not match:\n  * ")
	if !ok {
		t.Errorf("got %v", err)
	}
	return strings.Split(text, "\n  * ")
}

func TestVerifySkipsListsAllThatIsWrong(t *testing.T) {
	twice := plainly("a", "")
	twice.Isolate(nn.NewNamespace())
	twice.Stashes("a") // one name, two namespaces: Stash could not tell which is meant
	for _, row := range []struct {
		reason string
		model  *nn.Sequential
		want   []string
	}{
		{"nothing declared", nn.NewSequential(nn.NewTanh()), nil},
		{"popped before and after", nn.NewSequential(plainly("", "a"), plainly("a", ""), plainly("",
			"a")), []string{`"0" pops "a" before "1" stashes it`}},
		{"both in one, and popped again", nn.NewSequential(plainly("a", "a"), plainly("", "a")),
			[]string{`"0" both stashes and pops "a"`}},
		{"the names of nested layers", nn.NewSequential().Add("down", nn.NewSequential().Add("conv",
			plainly("a", ""))).Add("up", plainly("", "", plainly("", "b"))),
			[]string{`"up.0" pops "b", which no layer stashes`,
				`"down.conv" stashes "a", which no layer pops`}},
		{"of two children the second first", nn.NewSequential(plainly("", "", plainly("", "a"),
			plainly("a", ""))), []string{`"0.0" pops "a" before "0.1" stashes it`}},
		{"all children come before the next layer", nn.NewSequential(plainly("", "a", plainly("b", "")),
			plainly("a", "b")), []string{`"0" pops "a" before "1" stashes it`}},
		{"a name in two namespaces of one module", nn.NewSequential(twice), []string{
			`"0" stashes "a" twice`, `"0" stashes "a" of namespace N, which no layer pops`}},
		{"all at once", nn.NewSequential(plainly("a b b c", "x"), plainly("a d", "d"), plainly("",
			"e c c"), plainly("e f", "")), []string{
			`"0" stashes "b" twice`,
			`"0" and "1" both stash "a"; Isolate one in a namespace of its own, with the layers that pop it`,
			`"1" both stashes and pops "d"`,
			`"2" pops "c" twice`,
			`"0" pops "x", which no layer stashes`,
			`"2" pops "e" before "3" stashes it`,
			`"0" stashes "a", which no layer pops`,
			`"0" stashes "b", which no layer pops`,
			`"3" stashes "f", which no layer pops`,
		}},
	} {
		got := problems(t, row.model)
		for i := range got {
			got[i] = withoutNumber(got[i])
		}
		if d := cmp.Diff(row.want, got); d != "" {
			t.Errorf("%s (- want, + got):\n%s", row.reason, d)
		}
	}
}

// withoutNumber makes the number of a namespace, which depends on the tests that ran before, N.
func withoutNumber(s string) string {
	return regexp.MustCompile(`namespace \d+`).ReplaceAllString(s, "namespace N")
}

func TestIsolate(t *testing.T) {
	ns := nn.NewNamespace()
	// A model of two blocks of one kind; isolate is done to the second.
	model := func(isolate func(block *lambda)) *nn.Sequential {
		block := func() *lambda {
			return plainly("", "", plainly("a b", ""), plainly("", "", plainly("", "a b")))
		}
		second := block()
		isolate(second)
		return nn.NewSequential(block(), nn.NewSequential(second))
	}
	const both = `"0.0" and "1.0.0" both stash "a"; Isolate one in a namespace of its own, with the ` +
		`layers that pop it`
	for _, row := range []struct {
		reason  string
		isolate func(block *lambda)
		want    []string
	}{
		{"all, nested ones too", func(b *lambda) { b.Isolate(ns) }, nil},
		{"each by its name", func(b *lambda) { b.Isolate(ns, "a", "b") }, nil},
		{"in namespaces of their own", func(b *lambda) {
			b.Isolate(ns, "a")
			b.Isolate(nn.NewNamespace(), "b")
		}, nil},
		{"the last call counts", func(b *lambda) { b.Isolate(nn.NewNamespace(), "a"); b.Isolate(ns) }, nil},
		{"one of two", func(b *lambda) { b.Isolate(ns, "b") }, []string{both}},
		{"back into the namespace of all", func(b *lambda) {
			b.Isolate(ns)
			b.Isolate(nn.Namespace{}, "a")
		}, []string{both}},
	} {
		if d := cmp.Diff(row.want, problems(t, model(row.isolate))); d != "" {
			t.Errorf("%s (- want, + got):\n%s", row.reason, d)
		}
	}

	half := plainly("", "a")
	half.Isolate(ns)
	got := problems(t, nn.NewSequential(plainly("a", ""), half))
	for i := range got {
		got[i] = withoutNumber(got[i])
	}
	if want := []string{`"1" pops "a" of namespace N, which no layer stashes`,
		`"0" stashes "a", which no layer pops`}; !slices.Equal(got, want) {
		t.Errorf("one half: got %q, want %q", got, want)
	}

	if nn.NewNamespace() == nn.NewNamespace() || nn.NewNamespace() == (nn.Namespace{}) {
		t.Error("two namespaces are one")
	}
}

func TestSkipRoutesLeadFromLayerToLayers(t *testing.T) {
	ns := nn.NewNamespace()
	key := func(name string) nn.SkipKey { return nn.SkipKey{Name: name} }
	model := nn.NewSequential(
		plainly("a", ""),
		nn.NewSequential(plainly("b", "", plainly("c", "")), isolated(ns, plainly("a", ""))), // 1 and 2
		plainly("", "a", plainly("", "a c"), plainly("", "", plainly("", "a"))),              // 3
		plainly("d", "b", plainly("", "d")),                                                  // 4
		isolated(ns, plainly("", "a")),
		plainly("", "a"),
	)
	got, err := model.SkipRoutes()
	want := []nn.SkipRoute{
		{Key: key("a"), Stash: 0, Pops: []int{3, 3, 3, 6}},
		{Key: key("b"), Stash: 1, Pops: []int{4}},
		{Key: key("c"), Stash: 1, Pops: []int{3}},
		{Key: nn.SkipKey{Namespace: ns, Name: "a"}, Stash: 2, Pops: []int{5}},
		{Key: key("d"), Stash: 4, Pops: []int{4}},
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(nn.Namespace{})); err != nil || d != "" {
		t.Errorf("%v (- want, + got):\n%s", err, d)
	}
}
