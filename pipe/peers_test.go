package pipe_test

import (
	"context"
	"reflect"
	"sync"
	"syscall"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// A device has one thread, whichever stages, micro-batches and runs it works for; two devices have
// two.
func TestADeviceHasAThread(t *testing.T) {
	torchtest.Check(t)
	var mu sync.Mutex
	threads := map[int]map[int]bool{} // by stage
	where := func(stage int) nn.Layer {
		return layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			mu.Lock()
			defer mu.Unlock()
			if threads[stage] == nil {
				threads[stage] = map[int]bool{}
			}
			threads[stage][syscall.Gettid()] = true
			return c.Tanh(x)
		})
	}
	p := started(t, nn.NewSequential(where(0), where(1), where(2)), pipe.Config{
		Balance: []int{1, 1, 1}, Devices: []torch.Device{torch.CPU(0), torch.CPU(1),
			torch.CPU(0)}, Chunks: 4, Checkpoint: pipe.Always,
	})
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	x := normal(8, 2)(c, 0).SetRequiresGrad(true)
	defer x.SetGradOf(nil)
	for range 3 {
		if _, err := p.Step(context.Background(), pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(x)}, mean{}); err != nil {
			t.Fatal(err)
		}
	}
	if len(threads[0]) != 1 || !reflect.DeepEqual(threads[0],
		threads[2]) || len(threads[1]) != 1 || reflect.DeepEqual(threads[0], threads[1]) {
		t.Errorf("the stages on cpu:0, cpu:1 and cpu:0 ran on the threads %v", threads)
	}
}
