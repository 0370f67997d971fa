package nn_test

import (
	"slices"
	"strings"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/torch"
)

func TestFreezeAndUnfreezeAtAnyTime(t *testing.T) {
	c := torchtest.New(t, torch.Options{Grad: true})
	m := nn.NewSequential(nn.NewLinear(2, 2), nn.NewBatchNorm1d(2, nn.BatchNormConfig{}), nn.NewLinear(2, 1))
	nn.Materialise(c, nn.State(m), 1)
	defer nn.Free(m)
	modes := nn.ModesOf(m)
	step := func() (with []string) {
		nn.ZeroGrads(m)
		y := m.Forward(nn.NewCtx(c, nn.Config{Training: true}), c.Randn(4, 2))
		c.Backward([]*torch.Tensor{y}, []*torch.Tensor{c.OnesLike(y)}, false)
		for _, p := range nn.State(m) {
			if p.Tensor().HasGrad() {
				with = append(with, p.Name)
			}
		}
		return with
	}
	all := step()
	if len(all) != 6 || modes.Changed() {
		t.Fatalf("gradients of %q", all)
	}
	nn.Freeze(m.Slice(0, 2))
	if m.Layers()[0].Layer.(*nn.Linear).Weight.Tensor().HasGrad() {
		t.Error("a frozen parameter keeps its gradient")
	}
	if got := step(); !slices.Equal(got, []string{"2.weight", "2.bias"}) || !modes.Changed() || modes.Changed() {
		t.Errorf("with the body frozen, gradients of %q", got)
	}
	nn.Unfreeze(m)
	if got := step(); !slices.Equal(got, all) || !modes.Changed() {
		t.Errorf("unfrozen, gradients of %q", got)
	}
	if got := recovered(func() { nn.Buffers(m)[0].Unfreeze() }); got != "nn: Unfreeze: a buffer is never trained" {
		t.Errorf("got %q", got)
	}
}

func TestEvalKeepsStatisticsAndDropsNothing(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	norm := nn.NewBatchNorm1d(2, nn.BatchNormConfig{})
	m := nn.NewSequential(nn.NewSequential(norm, nn.NewDropout(0.5)), nn.NewDropout(0))
	nn.Materialise(c, nn.State(m), 1)
	defer nn.Free(m)
	modes := nn.ModesOf(m)
	x := c.Randn(64, 2)
	run := func(training bool) []float32 {
		return torch.Values[float32](m.Forward(nn.NewCtx(c, nn.Config{Training: training}), x))
	}
	want := run(false)
	nn.Eval(m.Slice(0, 1))
	if got := run(true); !slices.Equal(got, want) || torch.Item[int64](norm.NumBatchesTracked.Tensor()) != 0 || !modes.Changed() {
		t.Error("in training it does not run as in evaluation")
	}
	nn.Train(m)
	if got := run(true); slices.Equal(got, want) || torch.Item[int64](norm.NumBatchesTracked.Tensor()) != 1 || !modes.Changed() {
		t.Error("in training it does not run as in training")
	}
}

func TestReplaceAndSlice(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	body := nn.NewSequential().Add("conv", nn.NewLinear(2, 3)).Add("act", nn.NewTanh())
	m := nn.NewSequential().Add("body", body).Add("fc", nn.NewLinear(3, 4)).Add("end", nn.NewTanh())
	names := func(m nn.Module) (out []string) {
		for _, p := range nn.State(m) {
			out = append(out, p.Name)
		}
		return out
	}
	before := strings.Join(names(m), " ")
	old := m.Replace("fc", nn.NewLinear(3, 7))
	if got := strings.Join(names(m), " "); got != before || m.Len() != 3 || m.Layers()[2].Name != "fc" {
		t.Errorf("the parameters are %s, want %s, in the old order", got, before)
	}
	other := nn.NewSequential().Add("kept", old) // it has no parent any more
	m.Replace("body.act", nn.NewReLU())
	m.Replace("body.conv", nn.NewLinearNoBias(2, 3))
	nn.Materialise(c, nn.State(m), 1)
	nn.Materialise(c, nn.State(other), 1)
	defer nn.Free(m)
	defer nn.Free(other)
	if y := m.Forward(nn.NewCtx(c, nn.Config{}), c.Randn(5, 2)); y.Size(1) != 7 {
		t.Errorf("the output is %v", y)
	}
	if got := strings.Join(names(m), " "); got != "body.conv.weight fc.weight fc.bias" {
		t.Errorf("the parameters are %s", got)
	}

	part := m.Slice(0, 2)
	if got := strings.Join(names(part), " "); got != "body.conv.weight fc.weight fc.bias" || part.Len() != 2 {
		t.Errorf("the slice has %s", got)
	}
	x := c.Randn(5, 2)
	want := torch.Values[float32](m.Forward(nn.NewCtx(c, nn.Config{}), x))
	if got := torch.Values[float32](c.Tanh(part.Forward(nn.NewCtx(c, nn.Config{}), x))); !slices.Equal(got, want) {
		t.Error("the slice computes something else")
	}
	headed := m.Slice(0, 1).Add("head", nn.NewLinear(3, 2))
	nn.Materialise(c, nn.State(headed), 1)
	defer nn.Free(headed)
	if y := headed.Forward(nn.NewCtx(c, nn.Config{}), x); y.Size(1) != 2 || m.Len() != 3 {
		t.Errorf("the other head gives %v, and the model has %d layers", y, m.Len())
	}
	outer := nn.NewSequential().Add("a", m.Slice(0, 1)).Add("b", nn.NewTanh())
	if got := names(outer); !slices.Equal(got, []string{"a.body.conv.weight"}) {
		t.Errorf("a slice in another model has %q", got)
	}
	outer.Forward(nn.NewCtx(c, nn.Config{}), x)

	for _, row := range []struct {
		want string
		f    func()
	}{
		{`nn: Replace: there is no layer "head"; there are "body", "fc", "end"`, func() { m.Replace("head", nn.NewTanh()) }},
		{`nn: Replace: there is no layer "body.x"; there are "body", "fc", "end"`, func() { m.Replace("body.x", nn.NewTanh()) }},
		{`nn: module "kept" is already part of another module`, func() { m.Replace("fc", old) }},
		{"nn: Slice: from 1 to 4 of 3 children; want 0 <= from <= to <= 3", func() { m.Slice(1, 4) }},
		{"nn: Slice: from 2 to 1 of 3 children", func() { m.Slice(2, 1) }},
	} {
		if got := recovered(row.f); !strings.HasPrefix(got, row.want) {
			t.Errorf("got  %q\nwant %q", got, row.want)
		}
	}
	if got := strings.Join(names(m), " "); got != "body.conv.weight fc.weight fc.bias" {
		t.Errorf("after what was refused the parameters are %s", got)
	}
}

// All but some layers are constants that run as in evaluation; a parameter that one of these shares
// is trained.
func TestTrainOnly(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	tied := nn.NewLinear(2, 2)
	m := nn.NewSequential().
		Add("body", nn.NewSequential().Add("in", tied).Add("norm", nn.NewBatchNorm1d(2, nn.BatchNormConfig{})).Add("act", nn.NewTanh())).
		Add("head", nn.NewSequential().Add("first", nn.NewLinear(2, 2)).Add("last", nn.NewLinear(2, 2))).
		Add("out", nn.NewLinearShared(tied.Weight, false))
	nn.Materialise(c, nn.State(m), 1)
	defer nn.Free(m)
	trained := func() (names []string) {
		for _, p := range nn.State(m) {
			if p.Trainable() {
				names = append(names, p.Name)
			}
		}
		return names
	}
	norm := m.Layers()[1].Layer.(*nn.BatchNorm)
	for _, row := range []struct {
		patterns, want []string
	}{
		{[]string{"head.*"}, []string{"head.first.weight", "head.first.bias", "head.last.weight", "head.last.bias"}},
		{[]string{"head.last", "body.norm"}, []string{"body.norm.weight", "body.norm.bias", "head.last.weight", "head.last.bias"}},
		{[]string{"out"}, []string{"body.in.weight"}},
	} {
		if err := nn.TrainOnly(m, row.patterns...); err != nil || !slices.Equal(trained(), row.want) {
			t.Errorf("%q: %v, trained are %q, want %q", row.patterns, err, trained(), row.want)
		}
		before := torch.Item[int64](norm.NumBatchesTracked.Tensor())
		m.Forward(nn.NewCtx(c, nn.Config{Training: true}), c.Randn(4, 2))
		if moved := torch.Item[int64](norm.NumBatchesTracked.Tensor()) != before; moved != slices.Contains(row.patterns, "body.norm") {
			t.Errorf("%q: the statistics move: %v", row.patterns, moved)
		}
	}
	before := trained()
	for pattern, want := range map[string]string{
		"heads.*":  `nn: TrainOnly: no layer is named "heads.*"; there are "body.in", "body.norm", "body.act", "head.first" and 2 more, and the last is "out"`,
		"body.act": `nn: TrainOnly: the layers of "body.act" have no parameters; want some that have`,
	} {
		if err := nn.TrainOnly(m, "out", pattern); err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
	if !slices.Equal(trained(), before) {
		t.Error("what was refused has changed the model")
	}
	if err := nn.TrainOnly(m); err == nil || err.Error() != "nn: TrainOnly: no layers are named; want those that are trained" {
		t.Errorf("without names: %v", err)
	}
}
