package nn_test

import (
	"slices"
	"strings"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/torch"
)

// tuples is a layer of tuples that a test writes where it needs it.
type tuples struct {
	nn.Base
	f         func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor
	overwrite bool
}

func (l *tuples) ForwardTuple(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor { return l.f(c, xs) }
func (l *tuples) OverwritesInput() bool                                      { return l.overwrite }

func mapping(f func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor) nn.Layer {
	return tupleOf(&tuples{f: f})
}

func tupleOf(m interface {
	nn.Module
	ForwardTuple(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor
}) nn.Layer {
	return nn.Tuple(m, m.ForwardTuple)
}

// fork gives its input and the index of its largest element; join takes both.
func fork() nn.Layer {
	return mapping(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor { return []*torch.Tensor{xs[0], c.Argmax(xs[0], 1)} })
}

func join(children ...nn.Layer) nn.Layer {
	l := &tuples{}
	for _, child := range children {
		l.Child("table", child)
	}
	l.f = func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
		return []*torch.Tensor{c.Add(xs[0], c.Run(xs[1], children...))}
	}
	return nn.Tuple(l, l.ForwardTuple)
}

// each applies layers of one tensor to the elements of a tuple.
func each(layers ...nn.Layer) nn.Layer {
	l := &tuples{}
	for i, child := range layers {
		l.Child(string(rune('a'+i)), child)
	}
	l.f = func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
		out := slices.Clone(xs)
		for i := range layers {
			out[i] = c.Run(xs[i], layers[i])
		}
		return out
	}
	return nn.Tuple(l, l.ForwardTuple)
}

func TestTuplesComputeWhatTheNetworkWrittenOutComputes(t *testing.T) {
	c := torchtest.New(t, torch.Options{Grad: true})
	l, table := nn.NewLinear(4, 4), nn.NewEmbedding(4, 4, nn.EmbeddingConfig{})
	model := nn.NewSequential().Add("fork", fork()).Add("middle", nn.NewSequential(nn.NewSequential(each(l)), nn.NewSequential())).Add("join", join(table)).Add("tanh", nn.NewTanh())
	if got, want := names(nn.State(model)), "middle.0.0.a.weight middle.0.0.a.bias join.table.weight"; got != want {
		t.Errorf("the state is %s, want %s", got, want)
	}
	var flat []string
	for _, l := range model.Layers() {
		flat = append(flat, l.Name)
	}
	if got, want := strings.Join(flat, " "), "fork middle.0.0 join tanh"; got != want {
		t.Errorf("the layers are %s, want %s", got, want)
	}
	nn.Materialise(c, nn.State(model), 1)
	defer nn.Free(model)
	for _, grad := range []bool{true, false} {
		c.SetGrad(grad)
		got := results(c, model, model.Forward)
		want := results(c, model, func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			return c.Tanh(c.Add(l.Forward(c, x), table.Forward(c, c.Argmax(x, 1))))
		})
		if d := differs(got, want, 0); d != "" {
			t.Error(d)
		}
	}
}

// A tuple may go into a model and come out of it, and skips go round tuples.
func TestModelsOfTuples(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	swap := mapping(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor { return []*torch.Tensor{xs[1], xs[0]} })
	stash := &tuples{f: func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
		c.Stash("second", xs[1])
		return []*torch.Tensor{xs[0], xs[0]} // one tensor twice
	}}
	stash.Stashes("second")
	pop := &tuples{f: func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor { return append(slices.Clone(xs), c.Pop("second")) }}
	pop.Pops("second")
	model := nn.NewSequential(swap, nn.NewSequential(nn.Tuple(stash, stash.ForwardTuple), each(nn.NewReLU())), nn.Tuple(pop, pop.ForwardTuple))
	xs := []*torch.Tensor{torch.From(c, []int64{3}), torch.From(c, []float32{-1})}
	ys := model.ForwardTuple(nn.NewCtx(c, nn.Config{}), xs)
	if len(ys) != 3 || torch.Item[float32](ys[0]) != 0 || torch.Item[float32](ys[1]) != -1 || torch.Item[int64](ys[2]) != 3 {
		t.Errorf("got %v", ys)
	}
	if got := nn.NewSequential().ForwardTuple(nn.NewCtx(c, nn.Config{}), xs); !slices.Equal(got, xs) {
		t.Errorf("an empty model gave %v", got)
	}
}

// What leaves a tuple is let go of at once, element by element.
func TestTuplesHoldWhatIsHandedOnAlone(t *testing.T) {
	const activation = 4 * 1000
	a := newAccount(t, false)
	var live []int64
	probe := func() nn.Layer {
		return mapping(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
			live = append(live, a.used()/activation)
			return xs
		})
	}
	double := func() nn.Layer {
		return mapping(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
			c.Sigmoid(xs[0]) // nobody's
			return []*torch.Tensor{c.Tanh(xs[0]), c.Tanh(xs[0]), xs[0]}
		})
	}
	first := mapping(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor { return xs[:1] })
	last := mapping(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor { return xs[2:] })
	x := a.Ones(torch.Float32, 10, 100)
	a.start()
	nn.NewSequential(nn.NewTanh(), probe(), double(), probe(), last, probe(), double(), first, probe()).Forward(nn.NewCtx(a.Ctx, nn.Config{}), x).Free()
	if want := []int64{1, 3, 1, 1}; !slices.Equal(live, want) || a.used() != 0 {
		t.Errorf("%v activations are live and %d bytes left, want %v and none", live, a.used(), want)
	}
}

func TestTuplesMustFit(t *testing.T) {
	pair := fork()
	none := mapping(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor { return nil })
	null := mapping(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor { return []*torch.Tensor{xs[0], nil} })
	freed := mapping(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
		y := c.Tanh(xs[0])
		y.Free()
		return []*torch.Tensor{y, xs[0]}
	})
	nothing := doing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return nil })
	for _, row := range []struct {
		reason string
		model  *nn.Sequential
		where  string
		want   string
	}{
		{"a tuple into a layer of one tensor", nn.NewSequential(pair, nn.NewSequential().Add("tanh", nn.NewTanh())), "1.tanh",
			"Forward(float32[2,3], int64[2]): the layer takes one tensor and was given a tuple of 2; make it with nn.Tuple"},
		{"an empty tuple", nn.NewSequential().Add("none", none), "none", "Forward(float32[2,3]): the layer must return tensors that exist; it returned an empty tuple"},
		{"a tensor that is nil", nn.NewSequential(null), "0", "Forward(float32[2,3]): the layer must return tensors that exist; it returned float32[2,3], none"},
		{"a tensor that is freed", nn.NewSequential(freed), "0", "Forward(float32[2,3]): the layer must return tensors that exist; it returned freed, float32[2,3]"},
		{"no tensor", nn.NewSequential(nothing), "0", "Forward(float32[2,3]): the layer must return tensors that exist; it returned none"},
		{"a tuple out of a model of one tensor", nn.NewSequential(fork()), "", "Forward(float32[2,3], int64[2]): the model gives a tuple of 2 where one tensor is wanted; run it with ForwardTuple or RunNamed"},
		{"a tuple out of a child that is run for one tensor", nn.NewSequential(composite(nn.NewSequential().Add("deep", fork()))), "0",
			`Forward(float32[2,3], int64[2]): "0" gives a tuple of 2 where one tensor is wanted; run it with ForwardTuple or RunNamed`},
	} {
		t.Run(row.reason, func(t *testing.T) {
			c := nn.NewCtx(torchtest.New(t, torch.Options{}), nn.Config{})
			err := torch.Try(func() { row.model.Forward(c, c.Ones(torch.Float32, 2, 3)) })
			if err == nil || err.Error() != row.want || c.Path() != row.where {
				t.Errorf("got  %v at %q\nwant %s at %q", err, c.Path(), row.want, row.where)
			}
		})
	}
}

// A layer made by Tuple is the layer: as one of one tensor, and for whoever asks whether it works
// in place.
func TestTupleIsTheLayerItWraps(t *testing.T) {
	c := nn.NewCtx(torchtest.New(t, torch.Options{}), nn.Config{})
	for _, overwrite := range []bool{true, false} {
		l := tupleOf(&tuples{overwrite: overwrite, f: func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor { return []*torch.Tensor{c.ReLU(xs[0])} }})
		for _, m := range []nn.Layer{l, nn.NewSequential(nn.NewSequential(l))} {
			if f, ok := m.(nn.InPlace); !ok || f.OverwritesInput() != overwrite {
				t.Errorf("%T overwrites its input: %v, want %v", m, f.OverwritesInput(), overwrite)
			}
			if got := torch.Item[float32](m.Forward(c, torch.From(c.Ctx, []float32{-1}))); got != 0 {
				t.Errorf("%T gave %v", m, got)
			}
		}
	}
	if nn.NewSequential().OverwritesInput() || nn.NewSequential(nn.NewTanh(), nn.NewReLUInPlace()).OverwritesInput() {
		t.Error("a Sequential overwrites its input by another layer than the first")
	}
	shared := tupleOf(&tuples{f: func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor { return xs }})
	nn.NewSequential().Add("taken", shared)
	if got := recovered(func() { nn.NewSequential(shared) }); !strings.Contains(got, `module "taken" is already part of another module`) {
		t.Errorf("in two places: %q", got)
	}
}
