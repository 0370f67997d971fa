package shim_test

import (
	"runtime"
	"testing"
	"time"

	"penstock.example/internal/engine"
	"penstock.example/internal/shim"
	"penstock.example/internal/torchtest"
	"penstock.example/torch"
)

// Left alone, libtorch's engine takes threads of its own for what nests deeper than 60. Callbacks must
// work from there, and what ends a function must come out all the same.
// Those threads let go of a graph some time after backward has returned, so this test waits for that
// where others would find a leak.
func TestRecomputationsOnThreadsOfTheEngine(t *testing.T) {
	was := shim.SetHopEvery(1000)
	t.Cleanup(func() { shim.SetHopEvery(was) })
	before := shim.Checkpoints()
	for _, depth := range []int{70, 130} {
		for name, fail := range map[string]func(){"nothing": nil, "panic": func() { panic("panic") },
			"Goexit": runtime.Goexit} {
			c := torch.NewCtx(torch.Options{Grad: true, Threads: 1})
			x := c.Ones(torch.Float32, 2).SetRequiresGrad(true)
			f := func(c *torch.Ctx, in []*torch.Tensor) []*torch.Tensor {
				if c.Grad() && fail != nil {
					fail()
				}
				return []*torch.Tensor{c.MulScalar(in[0], 3)}
			}
			for range depth {
				inner := f
				f = func(c *torch.Ctx, in []*torch.Tensor) []*torch.Tensor {
					return engine.Checkpoint(c, inner, in, false)
				}
			}
			y := f(c, []*torch.Tensor{x})[0]
			ended := torchtest.Ended(func() {
				c.Backward([]*torch.Tensor{y}, []*torch.Tensor{c.Op("aten::ones_like", y)}, false)
			})
			if ended != name {
				t.Errorf("%d deep: backward ended with %v, want %s", depth, ended, name)
			}
			if g := c.GradOf(x); (g != nil) != (fail == nil) || g != nil && torch.Values[float32](g)[0] != 3 {
				t.Errorf("%d deep, %s: gradient %v", depth, name, g)
			}
			c.Close()
		}
	}
	for wait := 0; shim.Checkpoints() != before; wait++ {
		if wait == 1000 {
			t.Fatalf("%d checkpoints were not forgotten", shim.Checkpoints()-before)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
