package torch_test

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/torch"
)

// The first operator of such a context started as many threads, and the process stopped.
func TestTooManyThreadsAreRefused(t *testing.T) {
	torchtest.Check(t)
	for threads, want := range map[int]string{0: "", 1: "", torch.MaxThreads: "", torch.MaxThreads + 1: "257; want 0 to 256", 100_000: "100000", -1: "-1"} {
		err := torch.Try(func() {
			c := torch.NewCtx(torch.Options{Threads: threads})
			c.Close()
		})
		var e *torch.Error
		if want == "" && err != nil || want != "" && (!errors.As(err, &e) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%d threads: got %v, want %q", threads, err, want)
		}
	}
}

// A thread's tag is its own, and that of what a backward runs again for it, on whatever thread.
func TestThreadTag(t *testing.T) {
	c := torchtest.New(t, torch.Options{Grad: true})
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	torch.TagThread(7)
	defer torch.TagThread(0)
	other := make(chan int64)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		other <- torch.ThreadTag()
	}()
	if tag := <-other; tag != 0 {
		t.Errorf("another thread has the tag %d", tag)
	}
	var tags []int64
	f := func(c *torch.Ctx, in []*torch.Tensor) []*torch.Tensor {
		if c.Grad() {
			tags = append(tags, torch.ThreadTag())
		}
		return []*torch.Tensor{c.Tanh(in[0])}
	}
	for range 70 { // deep enough for threads of its own
		inner := f
		f = func(c *torch.Ctx, in []*torch.Tensor) []*torch.Tensor { return c.Checkpoint(inner, in, true) }
	}
	x := c.Ones(torch.Float32, 2).SetRequiresGrad(true)
	y := f(c, []*torch.Tensor{x})[0]
	c.Backward([]*torch.Tensor{y}, []*torch.Tensor{c.OnesLike(y)}, false)
	x.SetGradOf(nil)
	if len(tags) != 1 || tags[0] != 7 {
		t.Errorf("the recomputation found the tags %v, want 7 once", tags)
	}
}
