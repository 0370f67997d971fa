package pipe_test

import (
	"context"
	"os"
	"reflect"
	"regexp"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// Runs of several goroutines on one pipe, 80 of each kind, each get their own answer: outputs,
// losses and gradients of their own inputs are what the run gives alone. The parameters get the
// gradients of all; the numbers are whole, so that the sum does not depend on the order.
func TestConcurrentRuns(t *testing.T) {
	torchtest.Check(t)
	const goroutines, calls, rows = 4, 20, 8
	for _, cfg := range []pipe.Config{{Checkpoint: pipe.Never}, {Checkpoint: pipe.Always}, {Schedule: oneAtATime},
		{Devices: make([]torch.Device, 3)}} {
		cfg.Balance, cfg.Chunks = []int{1, 1, 3}, 4
		// With a skip and a tied parameter, which runs could mix up as well.
		first, last := stashing(nil, "skip"), popping(nil, "skip")
		w := first.Param("w", wholly, 3, 3)
		v := last.Share("w", w)
		first.f = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			c.Stash("skip", x)
			return c.PlainLinear(x, w.Tensor(), nil)
		}
		last.f = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			return c.Add(x, c.PlainLinear(c.Pop("skip"), v.Tensor(), nil))
		}
		model := nn.NewSequential(first, exact(), last)
		p := started(t, model, cfg)

		type answer struct {
			output, input []byte // and the gradient of the input
			loss          float64
		}
		// once does one of the kinds of calls on the data of a goroutine.
		once := func(c *torch.Ctx, g, kind int) (a answer, err error) {
			defer c.Close()
			x := whole(c, g, rows, 3).SetRequiresGrad(kind > 0)
			defer x.SetGradOf(nil)
			target := whole(c, g+100, rows, 3)
			switch kind {
			case 0:
				result, err := p.Infer(context.Background(), pipe.Batch{Input: pipe.Rows(x)})
				if err != nil {
					return a, err
				}
				a.output = torch.Bytes(result.Output[0])
				result.Output[0].Free()
				return a, nil
			case 1:
				run, err := p.Forward(context.Background(), pipe.Batch{Input: pipe.Rows(x)})
				if err != nil {
					return a, err
				}
				a.output = torch.Bytes(run.Output()[0])
				if err := run.Backward(context.Background(), target); err != nil {
					return a, err
				}
			case 2:
				result, err := p.Step(context.Background(), pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(target)}, product{})
				if err != nil {
					return a, err
				}
				a.loss = result.Loss
			}
			a.input = torch.Bytes(c.GradOf(x))
			return a, nil
		}
		var want [goroutines][3]answer
		total := map[string][]float32{}
		c := torch.NewCtx(torch.Options{Threads: 1})
		for g := range goroutines {
			for kind := range 3 {
				var err error
				if want[g][kind], err = once(c, g, kind); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, q := range nn.Params(model) {
			for _, v := range floats(gradient(q)) {
				total[q.Name] = append(total[q.Name], calls*v)
			}
		}
		nn.ZeroGrads(model)

		var all sync.WaitGroup
		for g := range goroutines {
			for kind := range 3 {
				all.Add(1)
				go func() {
					defer all.Done()
					c := torch.NewCtx(torch.Options{Threads: 1})
					for call := range calls {
						got, err := once(c, g, kind)
						if err != nil || !reflect.DeepEqual(got, want[g][kind]) {
							t.Errorf("%s: call %d of kind %d of goroutine %d got another answer; %v", named(cfg),
								call, kind, g, err)
						}
					}
				}()
			}
		}
		all.Wait()
		for _, q := range nn.Params(model) {
			if got := floats(gradient(q)); !reflect.DeepEqual(got, total[q.Name]) {
				t.Errorf("%s: the gradients of %s do not add up: %v, want %v", named(cfg), q.Name, got, total[q.Name])
			}
		}
		c.Close()
		nn.ZeroGrads(model)
	}
}

// product is the sum of products with the target: its gradient is the target.
type product struct{}

func (product) Forward(c *nn.Ctx, y, t *torch.Tensor) *torch.Tensor { return c.Sum(c.Mul(y, t)) }
func (product) Reduction() torch.Reduction                          { return torch.ReduceSum }

// No thread, goroutine or tensor outlives its pipe, however many there were and whatever they did.
func TestPipesLeaveNothingBehind(t *testing.T) {
	torchtest.Check(t)
	model := everything()
	defer nn.Free(model)
	c := torch.NewCtx(torch.Options{Threads: 1})
	defer c.Close()
	b := pipe.Batch{Input: pipe.Rows(normal(6, 4)(c, 0)), Target: pipe.Rows(normal(6, 4)(c, 1))}
	before, goroutines, tensors := 0, 0, int64(0)
	for i := range 20 {
		p, err := pipe.New(model, pipe.Config{Balance: []int{1, 1, 2, 1}, Chunks: 2})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Step(context.Background(), b, squares{}); err != nil {
			t.Fatal(err)
		}
		run, err := p.Forward(context.Background(), b) // and left alone
		if err != nil {
			t.Fatal(err)
		}
		p.Close()
		run.Close()
		nn.ZeroGrads(model)
		if i == 3 {
			before, goroutines, tensors = threads(t), runtime.NumGoroutine(), torch.LiveTensors()
		}
	}
	if n := torch.LiveTensors(); n != tensors {
		t.Errorf("%d tensors, %d after the first pipes", n, tensors)
	}
	for wait := 0; threads(t) > before+2 || runtime.NumGoroutine() > goroutines; wait++ {
		if wait == 100 {
			t.Fatalf("%d threads and %d goroutines, %d and %d after the first pipes", threads(t),
				runtime.NumGoroutine(), before, goroutines)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func threads(t *testing.T) int {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip("no /proc to count threads with")
	}
	n, _ := strconv.Atoi(regexp.MustCompile(`Threads:\s+(\d+)`).FindStringSubmatch(string(status))[1])
	return n
}
