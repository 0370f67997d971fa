package torch_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock.example/internal/torchtest"
	"penstock.example/torch"
)

func TestCheckpointNoticesOverwrittenInputs(t *testing.T) {
	c := checkpointed(t, torch.Options{})
	x := leaf(t, c, 2)
	h := c.MulScalar(x, 2)
	err := torch.Try(func() {
		c.Checkpoint(func(c *torch.Ctx, in tensors) tensors { return tensors{c.ReLU_(in[0])} }, tensors{h}, false)
	})
	if err == nil || !strings.Contains(err.Error(), "overwrote input 0") {
		t.Errorf("by the function: %v", err)
	}
	h = c.MulScalar(x, 2)
	y := c.Checkpoint(func(c *torch.Ctx, in tensors) tensors { return tensors{c.Tanh(in[0])} }, tensors{h}, false)
	c.AddScalar_(h, 1)
	err = torch.Try(func() { c.Backward(y, tensors{c.OnesLike(y[0])}, false) })
	if err == nil || !strings.Contains(err.Error(), "modified by an inplace operation") {
		t.Errorf("between forward and backward: %v", err)
	}
	if x.HasGrad() {
		t.Error("x has a gradient")
	}
}

func TestCheckpointThatComputesSomethingElse(t *testing.T) {
	c := checkpointed(t, torch.Options{})
	x := leaf(t, c, 2)
	for reason, second := range map[string]struct {
		f    func(c *torch.Ctx, x *torch.Tensor) tensors
		want string
	}{
		"fewer outputs": {func(c *torch.Ctx, x *torch.Tensor) tensors { return nil }, "returned 0 tensors, but 1 when it first ran"},
		"nil":           {func(c *torch.Ctx, x *torch.Tensor) tensors { return tensors{nil} }, "output 0 was float32[2] when the function first ran, and is none"},
		"another shape": {func(c *torch.Ctx, x *torch.Tensor) tensors { return tensors{c.Sum(x)} }, "output 0 was float32[2] when the function first ran, and is float32[]"},
	} {
		y := c.Checkpoint(func(c *torch.Ctx, in tensors) tensors {
			if c.Grad() {
				return second.f(c, in[0])
			}
			return tensors{c.Tanh(in[0])}
		}, tensors{x}, false)
		err := torch.Try(func() { c.Backward(y, tensors{c.OnesLike(y[0])}, false) })
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
			"an operator": {func(c *torch.Ctx) { c.Mm(c.Ones(torch.Float32, 2, 3), c.Ones(torch.Float32, 2, 3)) }, func(p any) bool {
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
			"memory in the inner backward": {func(c *torch.Ctx) { c.Device().SetLimit(c.Device().Memory().Live + 64) }, func(p any) bool {
				e, ok := p.(*torch.Error)
				return ok && errors.Is(e, torch.ErrOutOfMemory) && strings.Contains(e.Op, "TanhBackward")
			}},
		} {
			t.Run(fmt.Sprintf("%s, %d deep", name, depth), func(t *testing.T) {
				c := checkpointed(t, torch.Options{Device: torchtest.Device(3)})
				defer torchtest.Device(3).SetLimit(0)
				runtime.LockOSThread() // sequence numbers are the thread's
				defer runtime.UnlockOSThread()
				x := leaf(t, c, 64)
				f := func(c *torch.Ctx, in tensors) tensors {
					y := c.Tanh(in[0])
					if c.Grad() {
						row.fail(c)
					}
					return tensors{y}
				}
				before := torch.Sequence()
				y := c.Checkpoint(deep(depth-1, f), tensors{x}, false)
				after := torch.Sequence()
				grad := c.OnesLike(y[0])
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
				y = c.Checkpoint(deep(depth-1, func(c *torch.Ctx, in tensors) tensors { return tensors{c.MulScalar(in[0], 2)} }), tensors{x}, false)
				c.Backward(y, tensors{grad}, false)
				if got := gradOf(c, x); got == nil || got[0] != 2 {
					t.Errorf("the next backward gives %v", got)
				}
			})
		}
	}
}

// Goexit (FailNow, in tests) ends the goroutine that called Backward, and passes through no frame
// of C++ on its way.
func TestCheckpointGoexit(t *testing.T) {
	c := checkpointed(t, torch.Options{})
	x := leaf(t, c, 2)
	for _, depth := range []int{1, 3} {
		returned := true
		var wg sync.WaitGroup
		wg.Go(func() {
			y := c.Checkpoint(deep(depth-1, func(c *torch.Ctx, in tensors) tensors {
				if c.Grad() {
					runtime.Goexit()
				}
				return tensors{c.Tanh(in[0])}
			}), tensors{x}, false)
			returned = false
			c.Backward(y, tensors{c.OnesLike(y[0])}, false)
			returned = true
		})
		wg.Wait()
		if returned {
			t.Errorf("%d deep: Backward returned", depth)
		}
	}
	y := c.Checkpoint(func(c *torch.Ctx, in tensors) tensors { return tensors{c.Tanh(in[0])} }, tensors{x}, false)
	c.Backward(y, tensors{c.OnesLike(y[0])}, false)
}
