// Package torchtest gives tests a context and checks, when they end, that they left nothing behind:
// no tensor, no goroutine, no byte on a device's account, no limit.
package torchtest

import (
	"runtime"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"penstock.example/torch"
)

// devices is how many CPU devices are looked at for bytes left behind.
const devices = 8

// Check registers the leak check. Call it first in a test, so that it runs after everything the
// test itself cleans up. Tests that use it must not run in parallel: what is live is a number of
// the process.
func Check(t testing.TB) {
	t.Helper()
	torch.TrackLeaks(true)
	tensors := torch.LiveTensors()
	goroutines := runtime.NumGoroutine()
	var live [devices]int64
	for i := range live {
		live[i] = torch.CPU(i).Memory().Live
	}
	t.Cleanup(func() {
		if n := torch.LiveTensors(); n != tensors {
			t.Errorf("%d tensors were not freed:\n%s", n-tensors, strings.Join(torch.Leaks(), "\n"))
		}
		for i := range live {
			m := torch.CPU(i).Memory()
			if m.Live != live[i] {
				t.Errorf("%v: %d bytes more are live than before the test", torch.CPU(i), m.Live-live[i])
			}
			if m.Limit != 0 {
				t.Errorf("%v: the test left a limit of %d bytes", torch.CPU(i), m.Limit)
				torch.CPU(i).SetLimit(0)
			}
		}
		for wait := 0; runtime.NumGoroutine() > goroutines; wait++ {
			if wait == 100 {
				var b strings.Builder
				_ = pprof.Lookup("goroutine").WriteTo(&b, 1)
				t.Errorf("%d goroutines were not joined:\n%s", runtime.NumGoroutine()-goroutines, b.String())
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
}

// New checks for leaks and returns a context on cpu:0 that is closed when the test ends.
func New(t testing.TB, o torch.Options) *torch.Ctx {
	t.Helper()
	Check(t)
	if o.Threads == 0 {
		o.Threads = 1
	}
	c := torch.NewCtx(o)
	t.Cleanup(c.Close)
	return c
}
