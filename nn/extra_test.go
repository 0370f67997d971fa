package nn_test

import (
	"errors"
	"strings"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/torch"
)

func TestExtrasReachEveryLayerByTheirKey(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	width, sameName, absent := nn.NewExtra[float64]("width"), nn.NewExtra[float64]("width"), nn.NewExtra[int]("absent")
	table := nn.NewExtra[map[string]float64]("table")
	failure := nn.NewExtra[error]("failure")
	entries := map[string]float64{"b": 5}
	var seen int
	read := doing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		seen++
		if v, ok := absent.Lookup(c); ok || v != 0 {
			t.Errorf("a value that was not given is %v", v)
		}
		if v, ok := failure.Lookup(c); !ok || v != nil {
			t.Errorf("a nil that was given is %v, %v", v, ok)
		}
		if failure.In(c) != nil {
			t.Error("a nil that was given is not nil")
		}
		if v, ok := sameName.Lookup(c); !ok || v != 3 {
			t.Errorf("the second key of the name has %v", v)
		}
		return c.AddScalar(c.MulScalar(x, width.In(c)), table.In(c)["b"])
	})
	model := nn.NewSequential(nn.NewSequential(composite(read)))
	ctx := nn.NewCtx(c, nn.Config{Extras: []nn.Extra{{}, width.With(2), sameName.With(3), table.With(entries), failure.With(nil), width.With(100)}})
	for range 2 { // a recomputation, say
		if got := torch.Item[float32](model.Forward(ctx, torch.From(c, []float32{7}))); got != 2*7+5 { // the first of two under one key
			t.Errorf("got %v", got)
		}
	}
	entries["b"] = 6 // as it is, not a copy
	if got := table.In(ctx)["b"]; got != 6 || seen != 2 {
		t.Errorf("the table has %v", got)
	}
}

func TestAnExtraThatIsMissingFailsAsAnOperatorDoes(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	length := nn.NewExtra[int]("length")
	other := nn.NewExtra[int]("length")
	model := nn.NewSequential().Add("cut", doing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Narrow(x, 0, 0, int64(length.In(c))) }))
	for _, extras := range [][]nn.Extra{nil, {other.With(1)}, {{}}} {
		ctx := nn.NewCtx(c, nn.Config{Extras: extras})
		err := torch.Try(func() { model.Forward(ctx, c.Ones(torch.Float32, 2)) })
		var e *torch.Error
		if !errors.As(err, &e) || ctx.Path() != "cut" || !strings.Contains(err.Error(), `extra: the run has no extra "length"; give it to the batch, or to nn.Config`) {
			t.Errorf("got %v at %q", err, ctx.Path())
		}
	}
}
