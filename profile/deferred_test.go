package profile_test

import (
	"slices"
	"testing"
	"time"

	"penstock.example/nn"
	"penstock.example/profile"
	"penstock.example/remat"
	"penstock.example/torch"
)

// TestDeferredBytes: what units are measured to leave to the second parts of their backwards is at
// least what an execution holds after the first ones, and not much more in networks that people
// use.
func TestDeferredBytes(t *testing.T) {
	left := func(t *testing.T, model *nn.Sequential, x *torch.Tensor) (held, predicted int64) {
		t.Helper()
		chain := measured(t, model, profile.Config{BytesOnly: true, Balance: []int{len(model.Layers())},
			Split: true}, x).Chains[0]
		for _, u := range chain.Footprint.Backward[remat.AddsLater].Units {
			predicted += u.Left
		}
		return heldAfterFirstParts(t, model, chain, x), predicted
	}
	for _, n := range networks {
		c := newCtx(t)
		m := n.build()
		nn.Materialise(c, nn.State(m), 1)
		if held, predicted := left(t, m, n.input(c)); held > predicted {
			t.Errorf("%s: %d bytes are held, measured were %d", n.name, held, predicted)
		}
		nn.Free(m)
	}
	for _, m := range known {
		if slices.Contains([]string{"resnet18", "resnet50", "vgg11_bn"}, m.name) {
			continue // large
		}
		c := newCtx(t)
		model := build(t, m.name, m.options)
		nn.Materialise(c, nn.State(model), 1)
		held, predicted := left(t, model, inputOf(t, c, m.name))
		// whose first unit leaves its output as well
		if held > predicted || 20*predicted > 21*held && m.name != "mlp" {
			t.Errorf("%s: %d bytes are held, measured were %d", m.name, held, predicted)
		}
		nn.Free(model)
	}
}

// heldAfterFirstParts runs all units with gradients and the first parts of their backwards, and
// returns the bytes that are held then.
func heldAfterFirstParts(t *testing.T, m *nn.Sequential, chain profile.Chain, x *torch.Tensor) int64 {
	t.Helper()
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	c.NoGrad(func() {
		for _, p := range nn.Params(m) { // gradients are there
			p.Tensor().SetGradOf(c.Op("aten::zeros_like", p.Tensor()))
		}
	})
	c.Release(0)
	defer nn.ZeroGrads(m)
	before := c.Device().Memory().Live
	e := begun(t, c, m, chain, c.Keep(c.Share(x)))
	defer e.Free()
	e.Defer = true
	for i := chain.Prologue; i < e.Units(); i++ {
		e.Do(c, remat.Op{Kind: remat.ForwardSave, Layer: i})
	}
	e.Do(c, remat.Op{Kind: remat.LossStep})
	ys, _, _ := e.Output()
	var grads []*torch.Tensor
	for _, y := range ys {
		grads = append(grads, c.Keep(c.Op("aten::ones_like", y)))
	}
	e.GiveGrads(e.Units(), grads, nil)
	for i := e.Units() - 1; i >= chain.Prologue; i-- {
		e.Do(c, remat.Op{Kind: remat.Backward, Layer: i})
	}
	xs, _ := e.TakeGrads(chain.Prologue)
	torch.FreeAll(xs)
	held := c.Device().Memory().Live - before
	e.Weights(c)
	if left := c.Device().Memory().Live - before; left != 0 {
		t.Errorf("%d bytes are left after the second parts", left)
	}
	return held
}

// TestBothPartsAreTimed: parts are timed in passes, and what they take more than a whole backward
// is a part of that. Each operation takes a tick.
func TestBothPartsAreTimed(t *testing.T) {
	c := newCtx(t)
	clock := &fakeClock{tick: time.Millisecond}
	model := nn.NewSequential(nn.NewLinear(16, 16), nn.NewGELU(), nn.NewLinear(16, 16), nn.NewGELU())
	config := profile.Config{Repeats: 2, Clock: clock.read, Balance: []int{4}, Split: true, InputGrad: true}
	chain := measured(t, model, config, vectors(c)).Chains[0].Chain
	for i, d := range chain.Deferred {
		if !near(d.Share, 0.5) || !near(d.Longer, 1000) {
			t.Errorf("%s: %+v, want half of a time that is twice as long", chain.Layers[i].Name, d)
		}
	}
	if parts := chain.InParts(); parts.Layers[0].Backward != 2*chain.Layers[0].Backward {
		t.Errorf("in parts %+v of %+v", parts.Layers, chain.Layers)
	}
	// a profile of the layers without parts has none of their times, and is not used
	known := measured(t, model, profile.Config{Repeats: 2, Clock: clock.read, InputGrad: true}, vectors(c))
	config.Known = &known
	for _, d := range measured(t, model, config, vectors(c)).Chains[0].Deferred {
		if !near(d.Share, 0.5) || !near(d.Longer, 1000) {
			t.Errorf("of known times: %+v", d)
		}
	}
}
