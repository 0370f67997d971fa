package torch_test

import (
	"runtime"
	"sync"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/torch"
)

// doubling is a node that stands for two outputs, 2x and 3x, and does what during says.
type doubling struct {
	t         *testing.T
	during    func(c *torch.Ctx, a *torch.Arrival)
	arrivals  []torch.Arrival
	forgotten int
}

func (d *doubling) Backward(c *torch.Ctx, a *torch.Arrival) {
	d.arrivals = append(d.arrivals, *a)
	if c.Grad() {
		d.t.Error("grad is on")
	}
	if d.during != nil {
		d.during(c, a)
	}
	for i, g := range a.Grads {
		if g == nil {
			continue
		}
		part := c.MulScalar(g, float64(2+i))
		if a.InputGrads[0] != nil {
			part = c.Add(a.InputGrads[0], part)
		}
		a.InputGrads[0] = part
	}
}

func (d *doubling) Forget() { d.forgotten++ }

func (d *doubling) attach(c *torch.Ctx, inputs ...*torch.Tensor) []*torch.Tensor {
	var outputs []*torch.Tensor
	c.NoGrad(func() {
		outputs = []*torch.Tensor{c.MulScalar(inputs[0], 2), c.MulScalar(inputs[0], 3), nil, c.Argmax(inputs[0], 0)}
	})
	return c.Attach(inputs, outputs, d)
}

func TestAttach(t *testing.T) {
	c := torchtest.New(t, torch.Options{Grad: true})
	leaf := c.Ones(torch.Float32, 4).SetRequiresGrad(true)
	other := c.Ones(torch.Float32, 2)
	d := &doubling{t: t}
	ys := d.attach(c, c.MulScalar(leaf, 1), other, nil)
	if !ys[0].RequiresGrad() || ys[2] != nil || ys[3].RequiresGrad() {
		t.Fatalf("attached are %v", torch.Describe(ys))
	}
	start := func(i int, keep bool) {
		c.Backward(ys[i:i+1], []*torch.Tensor{c.OnesLike(ys[i])}, keep)
	}
	start(1, true)
	if got := torch.Values[float32](c.GradOf(leaf))[0]; got != 3 {
		t.Errorf("the gradient through one output is %v, want 3", got)
	}
	c.Backward(ys[:2], []*torch.Tensor{c.OnesLike(ys[0]), c.OnesLike(ys[1])}, false)
	if got := torch.Values[float32](c.GradOf(leaf))[0]; got != 8 {
		t.Errorf("the gradient through both as well is %v, want 8", got)
	}
	first, second := d.arrivals[0], d.arrivals[1]
	if first.Last || !second.Last || first.Grads[0] != nil || first.Grads[1] == nil || second.Grads[0] == nil || !first.Wanted[0] || first.Wanted[1] || first.Wanted[2] || d.forgotten != 1 {
		t.Errorf("arrivals are %+v, forgotten %d times", d.arrivals, d.forgotten)
	}
	if err := torch.Try(func() { start(0, false) }); err == nil || d.forgotten != 1 || len(d.arrivals) != 2 {
		t.Errorf("a third backward: %v, forgotten %d times", err, d.forgotten)
	}
}

// The node holds nothing, and what it is sent goes when it lets go of it, not when backward
// returns.
func TestAttachHoldsNothing(t *testing.T) {
	torchtest.Check(t)
	device := torchtest.Device(3)
	c := torch.NewCtx(torch.Options{Device: device, Grad: true, Threads: 1})
	defer c.Close()
	leaf := c.Ones(torch.Float32, 1000).SetRequiresGrad(true)
	d := &doubling{t: t, during: func(c *torch.Ctx, a *torch.Arrival) {
		before := device.Memory().Live
		a.Grads[0].Free()
		a.Grads[0] = nil
		if freed := before - device.Memory().Live; freed != 4000 {
			t.Errorf("the gradient of %d bytes was not the node's alone: %d are free", 4000, freed)
		}
	}}
	before := device.Memory().Live
	ys := d.attach(c, leaf)
	if used := device.Memory().Live - before; used != 8000+8 {
		t.Errorf("%d bytes are live, want those of the outputs", used)
	}
	loss := c.Sum(c.Tanh(ys[0])) // the gradient of a plain sum would be one number, expanded
	c.Backward([]*torch.Tensor{loss}, []*torch.Tensor{nil}, false)
	d.during = nil

	// A graph that is dropped is forgotten with its last tensor.
	d = &doubling{t: t}
	ys = d.attach(c, leaf)
	y := c.Tanh(ys[1])
	for _, t := range ys {
		t.Free()
	}
	if d.forgotten != 0 {
		t.Error("forgotten although there is a way to it")
	}
	y.Free()
	if d.forgotten != 1 {
		t.Errorf("forgotten %d times, want 1", d.forgotten)
	}
	leaf.SetGradOf(nil)
}

// However a node's backward ends, Backward ends like that, and nothing is left.
func TestAttachedBackwardFails(t *testing.T) {
	c := torchtest.New(t, torch.Options{Grad: true})
	for name, fail := range map[string]func(){"panic": func() { panic("panic") }, "Goexit": runtime.Goexit} {
		leaf := c.Ones(torch.Float32, 4).SetRequiresGrad(true)
		d := &doubling{t: t, during: func(*torch.Ctx, *torch.Arrival) { fail() }}
		y := d.attach(c, leaf)[0]
		var ended any = "Goexit"
		var wg sync.WaitGroup
		wg.Go(func() {
			defer func() {
				if p := recover(); p != nil {
					ended = p
				}
			}()
			c.Backward([]*torch.Tensor{y}, []*torch.Tensor{c.OnesLike(y)}, false)
			ended = "nothing"
		})
		wg.Wait()
		if ended != name {
			t.Errorf("backward ended with %v, want %v", ended, name)
		}
		c.Close()
		if d.forgotten != 1 {
			t.Errorf("%s: forgotten %d times, want 1", name, d.forgotten)
		}
	}
}

// The error of an operator in a node's backward says which node it was.
func TestAttachedBackwardNamesItsNode(t *testing.T) {
	c := torchtest.New(t, torch.Options{Grad: true})
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	leaf := c.Ones(torch.Float32, 4).SetRequiresGrad(true)
	x := c.MulScalar(leaf, 1)
	d := &doubling{t: t, during: func(c *torch.Ctx, _ *torch.Arrival) { c.Mm(c.Ones(torch.Float32, 2, 3), c.Ones(torch.Float32, 2, 3)) }}
	from := torch.Sequence()
	y := d.attach(c, x)[0]
	to := torch.Sequence()
	z := c.Tanh(y)
	err := torch.Try(func() { c.Backward([]*torch.Tensor{z}, []*torch.Tensor{c.OnesLike(z)}, false) })
	e, ok := err.(*torch.Error)
	if !ok || e.Op != "aten::mm" || e.Sequence < from || e.Sequence >= to {
		t.Errorf("the error is %v of node %d, want one of aten::mm from %d to %d", err, e.Sequence, from, to)
	}
}

func TestRaisePeak(t *testing.T) {
	torchtest.Check(t)
	d := torch.CPU(3)
	d.ResetPeak()
	live := d.Memory().Live
	d.RaisePeak(live + 100)
	d.RaisePeak(live + 50)
	if got := d.Memory().Peak; got != live+100 {
		t.Errorf("the peak is %d, want %d", got, live+100)
	}
	d.ResetPeak()
}
