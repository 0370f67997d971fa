package nn_test

import (
	"slices"
	"strconv"
	"testing"

	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/torch"
)

// Of two checkpoints in a row the second runs again and has gone back before the first runs again,
// so that the graph of one is there at a time.
func TestCheckpointsRunAgainOneByOne(t *testing.T) {
	c := torchtest.New(t, torch.Options{Grad: true})
	var timeline []string
	var second *torch.Tensor // the weight of b
	note := func(name string) nn.Layer {
		return doing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			event := name + " forward"
			if c.Recomputing {
				event = name + " again"
			}
			if second.HasGrad() {
				event += ", b went back"
			}
			timeline = append(timeline, event)
			return c.Tanh(x)
		})
	}
	a, b := nn.NewLinear(3, 3), nn.NewLinear(3, 3)
	model := nn.NewSequential(nn.Checkpointed(nn.NewSequential(a, note("a"))), nn.Checkpointed(nn.NewSequential(b, note("b"))))
	nn.Materialise(c, nn.State(model), 1)
	defer nn.Free(model)
	second = b.Weight.Tensor()
	y := model.Forward(nn.NewCtx(c, nn.Config{Training: true}), c.Ones(torch.Float32, 2, 3))
	c.Backward([]*torch.Tensor{y}, []*torch.Tensor{c.OnesLike(y)}, false)
	if want := []string{"a forward", "b forward", "b again", "a again, b went back"}; !slices.Equal(timeline, want) {
		t.Errorf("got  %q\nwant %q", timeline, want)
	}
}

// A wrapped layer runs again where something is trained in it or before it, and nowhere else; nor
// does anything want a gradient that need not.
func TestCheckpointsRunAgainWhereSomethingIsTrained(t *testing.T) {
	for _, row := range []struct {
		reason  string
		trained [3]bool // of three wrapped layers
		input   bool    // wants a gradient
		want    [3]int
	}{
		{"the last", [3]bool{false, false, true}, false, [3]int{1, 1, 2}},
		{"the first", [3]bool{true, false, false}, false, [3]int{2, 2, 2}},
		{"the input", [3]bool{}, true, [3]int{2, 2, 2}},
		{"nothing", [3]bool{}, false, [3]int{1, 1, 1}},
	} {
		c := torchtest.New(t, torch.Options{Grad: true})
		var runs [3]int
		model := nn.NewSequential()
		for i, trained := range row.trained {
			l := nn.NewLinear(3, 3)
			if !trained {
				l.Weight.Freeze()
				l.Bias.Freeze()
			}
			count := doing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				runs[i]++
				return c.Tanh(x)
			})
			model.Add(strconv.Itoa(i), nn.Checkpointed(nn.NewSequential(l, count)))
		}
		nn.Materialise(c, nn.State(model), 1)
		x := c.Ones(torch.Float32, 2, 3).SetRequiresGrad(row.input)
		y := model.Forward(nn.NewCtx(c, nn.Config{Training: true}), x)
		if wants := row.want[2] == 2; y.RequiresGrad() != wants {
			t.Errorf("%s: the output requires a gradient: %v, want %v", row.reason, !wants, wants)
		} else if wants {
			c.Backward([]*torch.Tensor{y}, []*torch.Tensor{c.OnesLike(y)}, false)
		}
		if runs != row.want {
			t.Errorf("%s: the layers ran %v times, want %v", row.reason, runs, row.want)
		}
		for i, p := range nn.State(model) {
			if p.Tensor().HasGrad() != row.trained[i/2] {
				t.Errorf("%s: %s has a gradient: %v", row.reason, p.Name, p.Tensor().HasGrad())
			}
		}
		x.SetGradOf(nil)
		nn.Free(model)
	}
}

// A namespace is a value: what is isolated in a copy of it is where the original's is.
func TestACopyOfANamespaceIsTheNamespace(t *testing.T) {
	space := nn.NewNamespace()
	other := space
	if other != space {
		t.Fatal("the copy is another namespace")
	}
	model := nn.NewSequential(isolated(space, stashing("a")), stashing("a"), isolated(other, popping("a")), popping("a"))
	got := must.Get(model.SkipRoutes())(t)
	if len(got) != 2 || got[0].Key.Namespace != space || got[0].Stash != 0 || !slices.Equal(got[0].Pops, []int{2}) || got[1].Stash != 1 || !slices.Equal(got[1].Pops, []int{3}) {
		t.Errorf("got %+v", got)
	}
}

// One skip after the other of one name is refused in one namespace, though no two of them are under
// way at once, and taken in two.
func TestOneNameAfterTheOther(t *testing.T) {
	for _, row := range []struct {
		first, second nn.Namespace
		want          []string
	}{
		{nn.Namespace{}, nn.Namespace{}, []string{`"0" and "2" both stash "a"; Isolate one in a namespace of its own, with the layers that pop it`}},
		{nn.NewNamespace(), nn.NewNamespace(), nil},
	} {
		model := nn.NewSequential(isolated(row.first, plainly("a", "")), isolated(row.first, plainly("", "a")), isolated(row.second, plainly("a", "")), isolated(row.second, plainly("", "a")))
		if got := problems(t, model); !slices.Equal(got, row.want) {
			t.Errorf("got %q, want %q", got, row.want)
		}
	}
}

// With the running statistics of deferred batch norm a model evaluates as one that saw the
// mini-batches whole, after several of them.
func TestDeferredEvaluatesAsPlainBatchNormDoes(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	for _, config := range []nn.BatchNormConfig{{}, {Cumulative: true}} {
		deferred, plain := batchNorm(c, 4, config), batchNorm(c, 4, config)
		defer nn.Free(deferred)
		defer nn.Free(plain)
		for step := range 5 {
			c.SetSeed(uint64(step))
			x := c.Normal_(c.Empty(torch.Float32, 16, channels, 2, 2), float64(1+step), 3)
			inParts(c, nn.NewDeferred(), deferred, x, []int64{4, 4, 4, 4})
			plain.Forward(nn.NewCtx(c, nn.Config{Training: true}), x)
			eval := func(b *nn.BatchNorm) map[string][]float32 {
				return map[string][]float32{"output": torch.Values[float32](b.Forward(nn.NewCtx(c, nn.Config{}), x))}
			}
			if d := differs(eval(deferred), eval(plain), 1e-6); d != "" {
				t.Errorf("after mini-batch %d: %s", step, d)
			}
		}
	}
}

// Deferral moves the statistics as the whole batch would and leaves the normalisation to the
// micro-batch. What is before the batch norm is therefore trained differently from the first step
// on, and the statistics follow: equal in the first step, different in the second.
func TestDeferredIsNotTheWholeBatch(t *testing.T) {
	c := torchtest.New(t, torch.Options{Grad: true})
	build := func() (*nn.Sequential, *nn.BatchNorm) {
		b := nn.NewBatchNorm1d(channels, nn.BatchNormConfig{Momentum: 1})
		m := nn.NewSequential(nn.NewLinear(channels, channels), b)
		nn.Materialise(c, nn.State(m), 1)
		return m, b
	}
	whole, plain := build()
	parts, deferred := build()
	defer nn.Free(whole)
	defer nn.Free(parts)
	x := c.Normal_(c.Empty(torch.Float32, 8, channels), 1, 2)
	up := c.Normal_(c.Empty(torch.Float32, 8, channels), 0, 1)
	// step runs the model on so many micro-batches and descends. It returns the output.
	step := func(m *nn.Sequential, d *nn.Deferred, rows int64) (out []float32) {
		for i := range 8 / rows {
			cut := func(t *torch.Tensor) *torch.Tensor { return c.Narrow(t, 0, i*rows, rows) }
			y := m.Forward(nn.NewCtx(c, nn.Config{Training: true, Deferred: d}), cut(x))
			out = append(out, torch.Values[float32](y)...)
			c.Backward([]*torch.Tensor{y}, []*torch.Tensor{cut(up)}, false)
		}
		if d != nil {
			d.Commit(nn.NewCtx(c, nn.Config{Training: true}))
		}
		c.NoGrad(func() {
			for _, p := range nn.Params(m) {
				c.Add_(p.Tensor(), c.GradOf(p.Tensor()), -0.1)
			}
		})
		nn.ZeroGrads(m)
		return out
	}
	d := nn.NewDeferred()
	for i, same := range []bool{true, false} {
		if slices.Equal(step(whole, nil, 8), step(parts, d, 2)) {
			t.Errorf("step %d: the outputs are the same", i)
		}
		var want []float64
		for _, v := range running(plain) {
			want = append(want, float64(v))
		}
		if got := running(deferred); near(got, want) != same {
			t.Errorf("step %d: the running statistics are %v and %v; equal: %v, want %v", i, got, want, !same, same)
		}
	}
}
