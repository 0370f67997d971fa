package engine_test

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock.example/internal/engine"
	"penstock.example/internal/must"
	"penstock.example/internal/shim"
	"penstock.example/internal/torchtest"
	"penstock.example/torch"
)

// tensors abbreviates the type of a checkpoint's function.
type tensors = []*torch.Tensor

// checkpointed is a context for tests of checkpoints: when the test ends no node may hold a
// function any more.
func checkpointed(t *testing.T, o torch.Options) *torch.Ctx {
	before := shim.Checkpoints()
	t.Cleanup(func() {
		if n := shim.Checkpoints() - before; n != 0 {
			t.Errorf("%d checkpoints were not forgotten", n)
		}
	})
	o.Grad = true
	return torchtest.New(t, o)
}

func gradOf(c *torch.Ctx, x *torch.Tensor) []float32 {
	g := c.GradOf(x)
	if g == nil {
		return nil
	}
	x.SetGradOf(nil)
	return torch.Values[float32](g)
}

// A random chain of operators, some of them random, gives the same bits with any part of it under
// a checkpoint, nested ones included.
func TestCheckpointIsTransparent(t *testing.T) {
	c := checkpointed(t, torch.Options{})
	const rows, width, longest = 3, 4, 8
	x := torchtest.Leaf(t, c, rows, width)
	// one for each place: a checkpoint adds its share to a gradient at once, which groups the sum of
	// several uses in another way
	var weights, biases tensors
	for range longest {
		weights, biases = append(weights, torchtest.Leaf(t, c, width, width)), append(biases,
			torchtest.Leaf(t, c, width))
	}
	operators := []func(c *torch.Ctx, i int, x *torch.Tensor) *torch.Tensor{
		func(c *torch.Ctx, i int, x *torch.Tensor) *torch.Tensor {
			return c.Linear(x, weights[i], biases[i])
		},
		func(c *torch.Ctx, _ int, x *torch.Tensor) *torch.Tensor { return c.Op("aten::tanh", x) },
		func(c *torch.Ctx, _ int, x *torch.Tensor) *torch.Tensor { return c.GELU(x, "none") },
		func(c *torch.Ctx, _ int, x *torch.Tensor) *torch.Tensor { return c.Dropout(x, 0.3) },
		func(c *torch.Ctx, _ int, x *torch.Tensor) *torch.Tensor {
			return c.Op("aten::softmax.int", c.Mul(x, x), -1)
		},
		// its input's gradient comes in two layouts
		func(c *torch.Ctx, _ int, x *torch.Tensor) *torch.Tensor {
			return c.Add(x, c.Transpose(c.Op("aten::contiguous", c.Transpose(x, 0, 1)), 0, 1))
		},
	}
	rapid.Check(t, func(r *rapid.T) {
		chain := rapid.SliceOfN(rapid.IntRange(0, len(operators)-1), 1, longest).Draw(r, "operators")
		cut := rapid.SliceOfN(rapid.IntRange(0, 3), len(chain), len(chain)).Draw(r,
			"nested checkpoints begun before each operator")
		autocast := rapid.Bool().Draw(r, "autocast")
		seed := rapid.Uint64().Draw(r, "seed")

		run := func(checkpoints bool) [][]float32 {
			mark := c.Mark()
			defer c.Release(mark)
			c.SetSeed(seed)
			if autocast {
				c.SetAutocast(torch.AutocastBFloat16)
				defer c.SetAutocast(torch.AutocastOff)
			}
			var from func(c *torch.Ctx, i, depth int, x *torch.Tensor) *torch.Tensor
			from = func(c *torch.Ctx, i, depth int, x *torch.Tensor) *torch.Tensor {
				if i == len(chain) {
					return x
				}
				if checkpoints && depth < cut[i] {
					return engine.Checkpoint(c, func(c *torch.Ctx, in tensors) tensors {
						return tensors{from(c, i, depth+1, in[0])}
					}, tensors{x}, true)[0]
				}
				return from(c, i+1, 0, operators[chain[i]](c, i, x))
			}
			y := c.To(from(c, 0, 0, x), torch.Float32)
			c.Backward(tensors{y}, tensors{c.Op("aten::ones_like", y)}, false)
			_, draws := c.Draws()
			out := [][]float32{torch.Values[float32](y), gradOf(c, x), {float32(draws)}}
			for i := range chain {
				out = append(out, gradOf(c, weights[i]), gradOf(c, biases[i]))
			}
			return out
		}
		if difference := cmp.Diff(run(false), run(true)); difference != "" {
			r.Fatalf("without (-) and with (+) checkpoints:\n%s", difference)
		}
	})
}

// Outputs without a gradient may come anywhere: an output before the one that has it must not shift
// it (peers give zero).
func TestCheckpointOutputsWithoutGradient(t *testing.T) {
	c := checkpointed(t, torch.Options{})
	x, y := torchtest.Leaf(t, c, 3), torchtest.Leaf(t, c, 3)
	c.NoGrad(func() { c.Copy_(y, torch.From(c, []float32{2, 3, 5})) }) // sums without rounding
	indices := torch.From(c, []int64{2, 0, 1})
	f := func(c *torch.Ctx, in tensors) tensors {
		if in[1] != nil || !slices.Equal(torch.Values[int64](in[2]), []int64{2, 0, 1}) {
			t.Errorf("inputs %v", in)
		}
		p := c.Mul(in[0], in[3])
		return tensors{
			c.MulScalar(in[0], 7),                 // not used
			c.Op("aten::eq.Tensor", in[0], in[0]), // bool
			nil,                                   // nothing
			p,                                     // the one
			c.Detach(c.Add(p, in[3])),             // needs none
			in[2],                                 // an input of integers
			in[0],                                 // an input as it is
		}
	}
	out := engine.Checkpoint(c, f, tensors{x, nil, indices, y}, false)
	if len(out) != 7 || out[2] != nil || !slices.Equal(torch.Values[bool](out[1]), []bool{true, true,
		true}) ||
		out[1].RequiresGrad() || out[5].DType() != torch.Int64 {
		t.Fatalf("got %v", out)
	}
	for _, row := range []struct {
		reason string
		output int
		wantX  func(x, y float32) float32
		hasY   bool
	}{
		{"the output after three without gradient", 3, func(_, y float32) float32 { return y }, true},
		{"the first output", 0, func(x, y float32) float32 { return 7 }, false},
		{"an input that is an output", 6, func(x, y float32) float32 { return 1 }, false},
		{"an output that needs no gradient in the second run", 4, nil, false},
	} {
		c.Backward(tensors{out[row.output]}, tensors{c.Op("aten::ones_like", out[row.output])}, true)
		var want []float32
		for i, v := range torch.Values[float32](x) {
			if row.wantX != nil {
				want = append(want, row.wantX(v, torch.Values[float32](y)[i]))
			}
		}
		if difference := cmp.Diff(want, gradOf(c, x)); difference != "" {
			t.Errorf("%s: gradient of x (-want +got):\n%s", row.reason, difference)
		}
		if got := gradOf(c, y); (got != nil) != row.hasY {
			t.Errorf("%s: gradient of y: %v", row.reason, got)
		}
	}
	all := tensors{out[0], out[3], out[6]}
	one := c.Op("aten::ones_like", x)
	c.Backward(all, tensors{one, one, one}, false)
	for i, got := range gradOf(c, x) {
		if want := 7 + torch.Values[float32](y)[i] + 1; got != want {
			t.Errorf("all outputs together: gradient %v, want %v", got, want)
		}
	}
	y.SetGradOf(nil)
}

func TestCheckpointGoesBackTwice(t *testing.T) {
	c := checkpointed(t, torch.Options{})
	x := torchtest.Leaf(t, c, 2)
	y := engine.Checkpoint(c, func(c *torch.Ctx, in tensors) tensors {
		return tensors{c.MulScalar(in[0], 3)}
	},
		tensors{x}, false)
	back := func(keep bool) error {
		return torch.Try(func() { c.Backward(y, tensors{c.Op("aten::ones_like", y[0])}, keep) })
	}
	must.Do(t, errors.Join(back(true), back(false)))
	if got := gradOf(c, x); !slices.Equal(got, []float32{6, 6}) {
		t.Errorf("two backwards give %v", got)
	}
	if err := back(false); err == nil || !strings.Contains(err.Error(),
		"CheckpointBackward: Trying to backward through the graph a second time") {
		t.Errorf("the third backward, without its graph: %v", err)
	}
}

// deep nests f in checkpoints.
func deep(depth int, f func(*torch.Ctx, tensors) tensors) func(*torch.Ctx, tensors) tensors {
	if depth == 0 {
		return f
	}
	inner := deep(depth-1, f)
	return func(c *torch.Ctx, in tensors) tensors { return engine.Checkpoint(c, inner, in, true) }
}

// Seventy checkpoints in each other, several of which are in one graph, on several goroutines:
// every byte is charged to the device, and the gradients are right.
func TestCheckpointsDeepAndSideBySide(t *testing.T) {
	checkpointed(t, torch.Options{})
	unattributed := shim.GetAccount(0).Live
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			d := torch.CPU(4 + g)
			c := torch.NewCtx(torch.Options{Device: d, Grad: true, Threads: 1})
			defer c.Close()
			x := c.Ones(torch.Float32, 1000).SetRequiresGrad(true)
			defer x.SetGradOf(nil)
			f := func(c *torch.Ctx, in tensors) tensors {
				if c.Device() != d {
					t.Errorf("a context on %v", c.Device())
				}
				return tensors{c.MulScalar(in[0], 2)}
			}
			h := tensors{x}
			for range 3 {
				h = engine.Checkpoint(c, deep(70, f), h, false)
			}
			side := engine.Checkpoint(c, f, tensors{x}, false)
			y := c.Add(h[0], side[0])
			c.Backward(tensors{y}, tensors{c.Op("aten::ones_like", y)}, false)
			if got := torch.Values[float32](c.GradOf(x)); got[0] != 10 || got[999] != 10 {
				t.Errorf("gradient %v, want 2*2*2 + 2", got[0])
			}
		})
	}
	wg.Wait()
	if got := shim.GetAccount(0).Live; got != unattributed {
		t.Errorf("%d bytes more belong to no device", got-unattributed)
	}
}

// A graph that nobody goes back through lets go of its functions with its last tensor.
func TestCheckpointIsForgottenWithItsGraph(t *testing.T) {
	c := checkpointed(t, torch.Options{})
	x := torchtest.Leaf(t, c, 2)
	before := shim.Checkpoints()
	y := engine.Checkpoint(c,
		func(c *torch.Ctx, in tensors) tensors { return tensors{c.Op("aten::tanh", in[0])} },
		tensors{x}, false)
	z := c.Op("aten::tanh", y[0])
	y[0].Free()
	if got := shim.Checkpoints() - before; got != 1 {
		t.Errorf("%d checkpoints, want 1", got)
	}
	z.Free()
	if got := shim.Checkpoints() - before; got != 0 {
		t.Errorf("%d checkpoints outlived their graph", got)
	}
}

func TestCheckpointNoticesOverwrittenInputs(t *testing.T) {
	c := checkpointed(t, torch.Options{})
	x := torchtest.Leaf(t, c, 2)
	h := c.MulScalar(x, 2)
	err := torch.Try(func() {
		engine.Checkpoint(c, func(c *torch.Ctx, in tensors) tensors { return tensors{c.ReLU_(in[0])} },
			tensors{h}, false)
	})
	if err == nil || !strings.Contains(err.Error(), "overwrote input 0") {
		t.Errorf("by the function: %v", err)
	}
	h = c.MulScalar(x, 2)
	y := engine.Checkpoint(c,
		func(c *torch.Ctx, in tensors) tensors { return tensors{c.Op("aten::tanh", in[0])} },
		tensors{h}, false)
	c.AddScalar_(h, 1)
	err = torch.Try(func() { c.Backward(y, tensors{c.Op("aten::ones_like", y[0])}, false) })
	if err == nil || !strings.Contains(err.Error(), "modified by an inplace operation") {
		t.Errorf("between forward and backward: %v", err)
	}
	if x.HasGrad() {
		t.Error("x has a gradient")
	}
}

func TestCheckpointThatComputesSomethingElse(t *testing.T) {
	c := checkpointed(t, torch.Options{})
	x := torchtest.Leaf(t, c, 2)
	for reason, second := range map[string]struct {
		f    func(c *torch.Ctx, x *torch.Tensor) tensors
		want string
	}{
		"fewer outputs": {func(c *torch.Ctx, x *torch.Tensor) tensors { return nil },
			"returned 0 tensors, but 1 when it first ran"},
		"nil": {func(c *torch.Ctx, x *torch.Tensor) tensors { return tensors{nil} },
			"output 0 was float32[2] when the function first ran, and is none"},
		"another shape": {func(c *torch.Ctx, x *torch.Tensor) tensors { return tensors{c.Sum(x)} },
			"output 0 was float32[2] when the function first ran, and is float32[]"},
	} {
		y := engine.Checkpoint(c, func(c *torch.Ctx, in tensors) tensors {
			if c.Grad() {
				return second.f(c, in[0])
			}
			return tensors{c.Op("aten::tanh", in[0])}
		}, tensors{x}, false)
		err := torch.Try(func() { c.Backward(y, tensors{c.Op("aten::ones_like", y[0])}, false) })
		if err == nil || !strings.Contains(err.Error(), second.want) {
			t.Errorf("%s: got %v, want %q in it", reason, err, second.want)
		}
	}
}

// Whatever ends the second run comes out of the Backward that was called, as it is, and leaves
// nothing behind; what comes after works.
func TestCheckpointFailures(t *testing.T) {
	boom := &torch.Error{Op: "boom"}
	type key struct{ int }
	for _, depth := range []int{1, 2, 70} {
		for name, row := range map[string]struct {
			fail func(c *torch.Ctx)
			want func(ended any) bool
		}{
			"an *Error":    {func(*torch.Ctx) { panic(boom) }, func(p any) bool { return p == any(boom) }},
			"another type": {func(*torch.Ctx) { panic(key{3}) }, func(p any) bool { return p == any(key{3}) }},
			"an operator": {func(c *torch.Ctx) {
				c.Op("aten::mm", c.Ones(torch.Float32, 2, 3), c.Ones(torch.Float32, 2, 3))
			}, func(p any) bool {
				e, ok := p.(*torch.Error)
				return ok && e.Op == "aten::mm" && cmp.Equal(e.Args, []string{"float32[2,3]", "float32[2,3]"})
			}},
			"memory": {func(c *torch.Ctx) {
				c.Device().SetLimit(c.Device().Memory().Live + 64)
				c.Ones(torch.Float32, 17)
			}, func(p any) bool {
				e, ok := p.(*torch.Error)
				return ok && errors.Is(e, torch.ErrOutOfMemory)
			}},
			"memory in the inner backward": {func(c *torch.Ctx) {
				c.Device().SetLimit(c.Device().Memory().Live + 64)
			}, func(p any) bool {
				e, ok := p.(*torch.Error)
				return ok && errors.Is(e, torch.ErrOutOfMemory) && strings.Contains(e.Op, "TanhBackward")
			}},
		} {
			t.Run(fmt.Sprintf("%s, %d deep", name, depth), func(t *testing.T) {
				c := checkpointed(t, torch.Options{Device: torchtest.Device(3)})
				defer torchtest.Device(3).SetLimit(0)
				runtime.LockOSThread() // sequence numbers are the thread's
				defer runtime.UnlockOSThread()
				x := torchtest.Leaf(t, c, 64)
				f := func(c *torch.Ctx, in tensors) tensors {
					y := c.Op("aten::tanh", in[0])
					if c.Grad() {
						row.fail(c)
					}
					return tensors{y}
				}
				before := engine.Sequence()
				y := engine.Checkpoint(c, deep(depth-1, f), tensors{x}, false)
				after := engine.Sequence()
				grad := c.Op("aten::ones_like", y[0])
				ended := func() (p any) {
					defer func() { p = recover() }()
					c.Backward(y, tensors{grad}, false)
					return nil
				}()
				if !row.want(ended) {
					t.Errorf("backward ended with %v", ended)
				}
				if e, ok := ended.(*torch.Error); ok && (e.Sequence < before || e.Sequence >= after) {
					t.Errorf("sequence %d, recorded in [%d,%d)", e.Sequence, before, after)
				}
				c.Device().SetLimit(0)
				y = engine.Checkpoint(c, deep(depth-1, func(c *torch.Ctx, in tensors) tensors {
					return tensors{c.MulScalar(in[0], 2)}
				}), tensors{x}, false)
				c.Backward(y, tensors{grad}, false)
				if got := gradOf(c, x); got == nil || got[0] != 2 {
					t.Errorf("the next backward gives %v", got)
				}
			})
		}
	}
}

// doubling is a node that stands for two outputs, 2x and 3x, and does what during says.
type doubling struct {
	t         *testing.T
	during    func(c *torch.Ctx, a *engine.Arrival)
	arrivals  []engine.Arrival
	forgotten int
}

func (d *doubling) Backward(c *torch.Ctx, a *engine.Arrival) {
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
		outputs = []*torch.Tensor{c.MulScalar(inputs[0], 2), c.MulScalar(inputs[0], 3), nil,
			c.Argmax(inputs[0], 0)}
	})
	return engine.Attach(c, inputs, outputs, d)
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
		c.Backward(ys[i:i+1], []*torch.Tensor{c.Op("aten::ones_like", ys[i])}, keep)
	}
	start(1, true)
	if got := torch.Values[float32](c.GradOf(leaf))[0]; got != 3 {
		t.Errorf("the gradient through one output is %v, want 3", got)
	}
	c.Backward(ys[:2], []*torch.Tensor{c.Op("aten::ones_like", ys[0]), c.Op("aten::ones_like", ys[1])}, false)
	if got := torch.Values[float32](c.GradOf(leaf))[0]; got != 8 {
		t.Errorf("the gradient through both as well is %v, want 8", got)
	}
	first, second := d.arrivals[0], d.arrivals[1]
	if first.Last || !second.Last || first.Grads[0] != nil || first.Grads[1] == nil ||
		second.Grads[0] == nil || !first.Wanted[0] || first.Wanted[1] || first.Wanted[2] || d.forgotten != 1 {
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
	d := &doubling{t: t, during: func(c *torch.Ctx, a *engine.Arrival) {
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
	loss := c.Sum(c.Op("aten::tanh", ys[0])) // the gradient of a plain sum would be one number, expanded
	c.Backward([]*torch.Tensor{loss}, []*torch.Tensor{nil}, false)
	d.during = nil

	// A graph that is dropped is forgotten with its last tensor.
	d = &doubling{t: t}
	ys = d.attach(c, leaf)
	y := c.Op("aten::tanh", ys[1])
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
		d := &doubling{t: t, during: func(*torch.Ctx, *engine.Arrival) { fail() }}
		y := d.attach(c, leaf)[0]
		ended := torchtest.Ended(func() {
			c.Backward([]*torch.Tensor{y}, []*torch.Tensor{c.Op("aten::ones_like", y)}, false)
		})
		if ended != name {
			t.Errorf("backward ended with %v, want %v", ended, name)
		}
		c.Close()
		if d.forgotten != 1 {
			t.Errorf("%s: forgotten %d times, want 1", name, d.forgotten)
		}
	}
}
