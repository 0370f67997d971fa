package pipe_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"penstock/internal/torchtest"
	"penstock/nn"
	"penstock/pipe"
	"penstock/torch"
)

// A pipe is its model, however it is cut: layers in order, by index from either end, under the names of the model, and each parameter once, under its own name.
func TestAPipeIsItsModel(t *testing.T) {
	torchtest.Check(t)
	for _, balance := range [][]int{{4}, {1, 3}, {2, 1, 1}, {1, 1, 1, 1}} {
		a, b, inner := nn.NewLinear(2, 2), nn.NewTanh(), nn.NewSequential(nn.NewLinear(2, 3), nn.NewReLU())
		model := nn.NewSequential().Add("a", a).Add("b", b).Add("c", inner)
		p := started(t, model, pipe.Config{Balance: balance})
		want := []nn.NamedLayer{{Name: "a", Layer: a}, {Name: "b", Layer: b}, {Name: "c.0", Layer: inner.Layers()[0].Layer}, {Name: "c.1", Layer: inner.Layers()[1].Layer}}
		if p.Model() != model || p.Len() != 4 || !slices.Equal(p.Layers(), want) {
			t.Errorf("balance %v: %d layers %v, want %v", balance, p.Len(), p.Layers(), want)
		}
		for i := range 4 {
			forward, err := p.Layer(i)
			backward, other := p.Layer(i - 4)
			if err != nil || other != nil || forward != want[i] || backward != want[i] {
				t.Errorf("balance %v: layer %d is %v, layer %d is %v; %v, %v", balance, i, forward, i-4, backward, err, other)
			}
		}
		for _, i := range []int{4, -5} {
			if _, err := p.Layer(i); err == nil || err.Error() != fmt.Sprintf("pipe: there is no layer %d among 4; want -4 to 3", i) {
				t.Errorf("layer %d: got %v", i, err)
			}
		}
		var layers []nn.NamedLayer
		var names []string
		for i, s := range p.Stages() {
			layers = append(layers, s.Layers...)
			if len(s.Layers) != balance[i] || s.Device != torch.CPU(i) {
				t.Errorf("balance %v: stage %d has %d layers on %v", balance, i, len(s.Layers), s.Device)
			}
			for _, q := range s.Params() {
				names = append(names, q.Name)
			}
		}
		if !slices.Equal(layers, want) || strings.Join(names, " ") != "a.weight a.bias c.0.weight c.0.bias" {
			t.Errorf("balance %v: the stages have the layers %v with the parameters %v", balance, layers, names)
		}
	}
}

// Once a stage has failed, those before it start nothing more. What the failing layer made is freed after the failure was recorded, so that is when the stage before goes on.
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
	_, err := p.Eval(context.Background(), normal(3, 2)(c, 0))
	var e *pipe.Error
	if !errors.As(err, &e) || !errors.Is(err, boom) || e.Stage != 1 || e.MicroBatch != 0 {
		t.Errorf("got %v", err)
	}
	if ran != 2 {
		t.Errorf("the stage before ran %d micro-batches, want 2 of 3", ran)
	}
}

// A device has one thread, whichever stages, micro-batches and runs it works for; two devices have two.
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
		Balance: []int{1, 1, 1}, Devices: []torch.Device{torch.CPU(0), torch.CPU(1), torch.CPU(0)}, Chunks: 4, Checkpoint: pipe.Always,
	})
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	x := normal(8, 2)(c, 0).SetRequiresGrad(true)
	defer x.SetGradOf(nil)
	for range 3 {
		if _, err := p.Step(context.Background(), pipe.Batch{Input: x, Target: x}, mean{}); err != nil {
			t.Fatal(err)
		}
	}
	if len(threads[0]) != 1 || !reflect.DeepEqual(threads[0], threads[2]) || len(threads[1]) != 1 || reflect.DeepEqual(threads[0], threads[1]) {
		t.Errorf("the stages on cpu:0, cpu:1 and cpu:0 ran on the threads %v", threads)
	}
}
