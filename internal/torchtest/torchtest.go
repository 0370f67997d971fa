// Package torchtest gives tests a context and checks, when they end, that they left nothing behind:
// no tensor, no goroutine, no byte on a device's account, no limit.
package torchtest

import (
	"cmp"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock.example/torch"
)

// watched lists the devices that are checked for bytes left behind.
func watched() []torch.Device {
	list := slices.Clone(chosen())
	for i := range 8 {
		if d := torch.CPU(i); !slices.Contains(list, d) {
			list = append(list, d)
		}
	}
	return list
}

// Check registers the leak check. Call it first in a test, so that it runs after the test's own
// cleanups. Such tests must not run in parallel: live tensors are counted by process.
func Check(t testing.TB) {
	t.Helper()
	torch.TrackLeaks(true)
	tensors := torch.LiveTensors()
	goroutines := runtime.NumGoroutine()
	devices := watched()
	live := make([]int64, len(devices))
	for i, d := range devices {
		live[i] = d.Memory().Live
	}
	t.Cleanup(func() {
		if n := torch.LiveTensors(); n != tensors {
			t.Errorf("%d tensors were not freed:\n%s", n-tensors, strings.Join(torch.Leaks(), "\n"))
		}
		for i, d := range devices {
			m := d.Memory()
			if m.Live != live[i] {
				t.Errorf("%v: %d bytes more are live than before the test", d, m.Live-live[i])
			}
			if m.Limit != 0 {
				t.Errorf("%v: the test left a limit of %d bytes", d, m.Limit)
				d.SetLimit(0)
			}
		}
		for wait := 0; runtime.NumGoroutine() > goroutines; wait++ {
			if wait == 100 {
				var b strings.Builder
				_ = pprof.Lookup("goroutine").WriteTo(&b, 1)
				if strings.Contains(b.String(), "regexp2/v2.runClock") &&
					runtime.NumGoroutine() == goroutines+1 {
					break // regexp2's clock for timeouts ends by itself
				}
				t.Errorf("%d goroutines were not joined:\n%s", runtime.NumGoroutine()-goroutines, b.String())
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
}

// New checks for leaks and returns a context that is closed when the test ends. If o.Device is
// cpu:0, the default, the context is on Device(0).
func New(t testing.TB, o torch.Options) *torch.Ctx {
	t.Helper()
	Check(t)
	if o.Threads == 0 {
		o.Threads = 1
	}
	if o.Device == torch.CPU(0) {
		o.Device = Device(0)
	}
	c := torch.NewCtx(o)
	t.Cleanup(c.Close)
	return c
}

// Leaf is a tensor that wants a gradient. Both are freed when the test ends.
func Leaf(t testing.TB, c *torch.Ctx, shape ...int64) *torch.Tensor {
	var x *torch.Tensor
	c.NoGrad(func() { x = c.Keep(c.Normal_(c.Empty(torch.Float32, shape...), 0, 1).SetRequiresGrad(true)) })
	t.Cleanup(func() {
		x.SetGradOf(nil)
		x.Free()
	})
	return x
}

// Ended runs f on a goroutine of its own and returns how it ended: the value of its panic,
// "Goexit", or "nothing" if it returned.
func Ended(f func()) (how any) {
	how = "Goexit"
	var done sync.WaitGroup
	done.Go(func() {
		defer func() { how = cmp.Or(recover(), how) }()
		f()
		how = "nothing"
	})
	done.Wait()
	return how
}
