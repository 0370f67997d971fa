package segment_test

import (
	"bytes"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/remat"
	"penstock.example/segment"
	"penstock.example/torch"
)

// What a segment gives to other layers of the model has no gaps in its memory, and holds no other memory:
// its output, its skip and the gradient of its input, with a graph and without.
func TestWhatLeavesIsDense(t *testing.T) {
	torchtest.Check(t)
	const rows, wide = 3, 10
	gaps := &layer{forward: func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { // in the output, the skip and the gradient of x
		both := c.Cat([]*torch.Tensor{x, c.Detach(x)}, 1)
		c.Stash("s", c.Narrow(both, 1, 1, wide))
		return c.Narrow(both, 1, 2, wide)
	}}
	gaps.Stashes("s")
	m := nn.NewSequential(nn.NewTanh(), gaps, pop("s"))
	routes, err := m.SkipRoutes()
	if err != nil {
		t.Fatal(err)
	}
	d := torchtest.Device(1)
	c := torch.NewCtx(torch.Options{Device: d})
	defer c.Close()
	x := c.Randn(rows, wide)
	run := func(first, last int, kind remat.Kind) (outs []*torch.Tensor, e *segment.Execution) {
		s, err := segment.New(segment.Config{Layers: m.Layers(), Routes: routes, First: first, Last: last, InputGrad: true})
		if err != nil {
			t.Fatal(err)
		}
		e = &segment.Execution{}
		e.Begin(s, training)
		e.Send(0, segment.Arrival{Tensors: []*torch.Tensor{c.Keep(c.Detach(x))}, Wants: []bool{true}})
		e.Do(c, remat.Op{Kind: kind})
		xs, skips, saved := e.Output()
		if saved != (kind == remat.ForwardSave) {
			t.Errorf("%v: saved is %v", kind, saved)
		}
		return append(xs[:1:1], skips...), e
	}
	var same []byte
	for _, kind := range []remat.Kind{remat.ForwardKeep, remat.ForwardSave} {
		before := d.Memory().Live
		outs, e := run(1, 2, kind)
		if held := d.Memory().Live - before; held != 2*rows*wide*4 {
			t.Errorf("%v: %d bytes are held, want those of two tensors of %d", kind, held, rows*wide*4)
		}
		var values []byte
		mark := c.Mark()
		for _, y := range outs {
			if !torch.Dense(y.Shape(), c.Strides(y)) {
				t.Errorf("%v: %v has strides %v", kind, y, c.Strides(y))
			}
			values = append(values, torch.Bytes(c.Detach(y))...)
		}
		c.Release(mark)
		if same == nil {
			same = values
		} else if !bytes.Equal(values, same) {
			t.Errorf("%v gives other values", kind)
		}
		if kind == remat.ForwardSave {
			e.Do(c, remat.Op{Kind: remat.LossStep})
			ones := func() *torch.Tensor { return c.Keep(c.Ones(torch.Float32, rows, wide)) }
			e.GiveGrads(1, []*torch.Tensor{ones()}, [][]*torch.Tensor{{ones()}})
			e.Do(c, remat.Op{Kind: remat.Backward})
			grads, _ := e.TakeGrads(0)
			if g := grads[0]; !torch.Dense(g.Shape(), c.Strides(g)) {
				t.Errorf("the gradient %v has strides %v", g, c.Strides(g))
			}
			if held := d.Memory().Live - before; held != rows*wide*4 {
				t.Errorf("after the backward %d bytes are held, want those of the gradient, %d", held, rows*wide*4)
			}
			torch.FreeAll(grads)
		}
		e.Free()
	}
}
