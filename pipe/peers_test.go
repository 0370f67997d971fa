package pipe_test

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"syscall"
	"testing"
	"time"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// Once a stage has failed, those before it start nothing more. What the failing layer made is freed
// after the failure was recorded, so that is when the stage before goes on.
func TestAFailureStopsTheStagesBefore(t *testing.T) {
	torchtest.Check(t)
	made, ran := make(chan bool), 0
	live := torch.CPU(1).Memory().Live
	count := layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		if ran++; c.MicroBatch == 1 {
			<-made
			for wait := 0; torch.CPU(1).Memory().Live >= live+4<<20; wait++ {
				if wait == 60000 {
					panic("the failed stage keeps what it made")
				}
				time.Sleep(time.Millisecond)
			}
		}
		return c.Tanh(x)
	})
	boom := errors.New("boom")
	fail := layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		c.Ones(torch.Float32, 1<<20)
		close(made)
		panic(boom)
	})
	p := started(t, nn.NewSequential(count, fail), pipe.Config{Balance: []int{1, 1}, Chunks: 3})
	c := torch.NewCtx(torch.Options{Device: torch.CPU(2)})
	defer c.Close()
	_, err := eval(p, context.Background(), normal(3, 2)(c, 0))
	var e *pipe.Error
	if !errors.As(err, &e) || !errors.Is(err, boom) || e.Stage != 1 || e.MicroBatch != 0 {
		t.Errorf("got %v", err)
	}
	if ran != 2 {
		t.Errorf("the stage before ran %d micro-batches, want 2 of 3", ran)
	}
}

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
