package engine_test

import (
	"testing"

	"penstock.example/internal/engine"
	"penstock.example/internal/torchtest"
	"penstock.example/torch"
)

// Tensors that nobody else uses lose their memory, and get some again, in which they lie as they did. What
// something else holds stays.
func TestHollow(t *testing.T) {
	c := torchtest.New(t, torch.Options{Device: torchtest.Device(4)})
	live := func() int64 { return c.Device().Memory().Live }
	const n = 1000
	x := c.Ones(torch.Float32, 4, n)
	two := []*torch.Tensor{c.Narrow(x, 0, 0, 2), c.Narrow(x, 0, 2, 2)} // views of what has no handle
	x.Free()
	two = append(two, nil, two[0], c.Share(two[1]))
	kept := c.Ones(torch.Float32, n)
	weight := c.Ones(torch.Float32, n).SetRequiresGrad(true)
	c.SetGrad(true)
	y := c.Mul(kept, weight) // the graph holds kept
	c.SetGrad(false)
	before := live()
	engine.Hollow(two[:2]) // there is another handle
	engine.Hollow(two[:1]) // and another tensor there
	engine.Hollow([]*torch.Tensor{kept, weight, nil})
	if got := live(); got != before {
		t.Errorf("%d bytes of others are gone", before-got)
	}
	id, bytes := two[0].Storage()
	engine.Hollow(two)
	if got := before - live(); got != 4*4*n {
		t.Errorf("%d bytes are given back, want %d", got, 4*4*n)
	}
	if is, has := two[1].Storage(); is != id || has != bytes {
		t.Errorf("they lie in %x of %d bytes, and lay in %x of %d", is, has, id, bytes)
	}
	engine.Hollow(two)
	engine.Refill(c, two)
	engine.Refill(c, two)
	if got := live(); got != before {
		t.Errorf("%d bytes, want %d", got, before)
	}
	c.Fill_(two[0], 2)
	if got := torch.Values[float32](c.Cat([]*torch.Tensor{two[0], two[1]}, 0)); got[0] != 2 ||
		got[2*n-1] != 2 || got[2*n] != 0 || got[4*n-1] != 0 {
		t.Errorf("%v, %v, %v, %v; want 2, 2, 0, 0", got[0], got[2*n-1], got[2*n], got[4*n-1])
	}
	if got := torch.Values[float32](y); got[0] != 1 {
		t.Errorf("a product of 1 and 1 is %v", got[0])
	}
	d := c.Device()
	engine.Hollow(two)
	d.SetLimit(live() + 4*4*n - 1)
	defer d.SetLimit(0)
	if err := torch.Try(func() { engine.Refill(c, two) }); err == nil {
		t.Error("they got memory beyond the limit")
	}
}
