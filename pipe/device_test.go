package pipe_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"penstock.example/internal/engine"
	"penstock.example/internal/must"
	"penstock.example/internal/shim"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// TestDevice tries in small what everything else on a device needs. It is what scripts/gpu-check runs
// first on a GPU, and its log has the numbers.
func TestDevice(t *testing.T) {
	d := torchtest.Device(0)
	hardware := must.Get(d.Hardware())(t)
	t.Logf("%v: %+v, %+v", d, hardware, d.Memory())
	for _, part := range []struct {
		name string
		try  func(*testing.T, *torch.Ctx)
	}{
		{"Memory", tryMemory}, {"Limit", tryLimit}, {"Products", tryProducts},
		{"Convolutions", tryConvolutions},
		{"Dropout", tryDropout}, {"Events", tryEvents}, {"Pipe", tryPipe},
	} {
		t.Run(part.name, func(t *testing.T) {
			part.try(t, torchtest.New(t, torch.Options{Device: d, Seed: 1}))
		})
	}
	t.Logf("%v: %+v", d, d.Memory())
}

func tryMemory(t *testing.T, c *torch.Ctx) {
	const bytes = 64 << 20
	before := c.Device().Memory()
	x := c.Ones(torch.Float32, bytes/4)
	with := c.Device().Memory()
	if sum := torch.Item[float32](c.Sum(x)); sum != bytes/4 {
		t.Errorf("a sum of %d ones is %v", bytes/4, sum)
	}
	x.Free()
	if with.Live-before.Live != bytes || with.Taken < with.Live {
		t.Errorf("%d bytes: before %+v, with them %+v", bytes, before, with)
	}
	t.Logf("before %+v, with %d bytes %+v, after %+v", before, bytes, with, c.Device().Memory())
}

func tryLimit(t *testing.T, c *torch.Ctx) {
	d := c.Device()
	d.SetLimit(d.Memory().Live + 1<<20)
	err := torch.Try(func() { c.Ones(torch.Float32, 1<<20) })
	d.SetLimit(0)
	if !errors.Is(err, torch.ErrOutOfMemory) {
		t.Errorf("4 MiB under a limit of 1: %v", err)
	}
	c.Ones(torch.Float32, 1<<20)
}

// relative returns the norm of the difference to the norm of the wanted tensor.
func relative(got, want *torch.Tensor) float64 {
	a, b := torch.Values[float32](got), torch.Values[float32](want)
	var difference, size float64
	for i := range b {
		difference, size = difference+math.Pow(float64(a[i]-b[i]), 2), size+math.Pow(float64(b[i]), 2)
	}
	return math.Sqrt(difference / size)
}

// besideCPU compares an operator of two random tensors with the CPU's. Float32 with all of its bits
// differs by some 1e-6, TF32 by 3e-4.
func besideCPU(t *testing.T, c *torch.Ctx, left, right []int64,
	f func(c *torch.Ctx, a, b *torch.Tensor) *torch.Tensor) {
	t.Helper()
	cpu := torch.NewCtx(torch.Options{Device: torch.CPU(20), Seed: 1})
	defer cpu.Close()
	a, b := cpu.Randn(left...), cpu.Randn(right...)
	apart := relative(f(c, c.CopyHere(a), c.CopyHere(b)), f(cpu, a, b))
	if !(apart < 1e-5) {
		t.Errorf("differs from the CPU by %.2g", apart)
	}
	t.Logf("differs from the CPU by %.2g", apart)
}

func tryProducts(t *testing.T, c *torch.Ctx) {
	besideCPU(t, c, []int64{512, 512}, []int64{512, 512}, (*torch.Ctx).Matmul)
}

func tryConvolutions(t *testing.T, c *torch.Ctx) {
	besideCPU(t, c, []int64{4, 32, 28, 28}, []int64{64, 32, 3, 3},
		func(c *torch.Ctx, x, w *torch.Tensor) *torch.Tensor {
			return c.Op("penstock::conv2d", x, w, nil, []int64{1, 1}, []int64{1, 1}, []int64{1, 1}, 1)
		})
}

func tryDropout(t *testing.T, c *torch.Ctx) {
	var drawn [2][]float32
	for i := range drawn {
		c.SetSeed(5)
		drawn[i] = torch.Values[float32](c.Dropout(c.Ones(torch.Float32, 1<<16), 0.5))
	}
	kept := 0
	for i, v := range drawn[0] {
		if v != drawn[1][i] {
			t.Fatalf("element %d of two draws with one seed: %v and %v", i, v, drawn[1][i])
		}
		if v != 0 {
			kept++
		}
	}
	if kept < 32000 || kept > 33500 {
		t.Errorf("%d of 65536 are kept", kept)
	}
}

func tryEvents(t *testing.T, c *torch.Ctx) {
	x := c.Randn(1024, 1024)
	c.Op("aten::mm", x, x)
	begin := engine.Now(c)
	for range 10 {
		c.Op("aten::mm", x, x)
	}
	end := engine.Now(c)
	c.Synchronize()
	defer begin.Free()
	defer end.Free()
	took := end.Since(begin)
	if took <= 0 {
		t.Errorf("ten products took %v", took)
	}
	t.Logf("ten products of 1024^3 took %v, %.1f TFLOP/s", took, 10*2*math.Pow(1024, 3)/took.Seconds()/1e12)
}

// A pipe of two stages gives the same loss for the same batch and seeds. Its steps wait for a GPU only
// where the pipe does: libtorch's operators that wait are refused.
func tryPipe(t *testing.T, c *torch.Ctx) {
	model := nn.NewSequential(nn.NewConv2d(3, 8, nn.Square(3), nn.ConvConfig{}), nn.NewReLU(),
		nn.NewFlatten(1, -1),
		nn.NewLinear(8*14*14, 64), nn.NewDropout(0.5), nn.NewLinear(64, 10))
	devices := []torch.Device{c.Device(), c.Device()}
	p := started(t, model, pipe.Config{Balance: []int{3, 3}, Devices: devices, Chunks: 4,
		Checkpoint: pipe.Always, Seed: 1})
	b := pipe.Batch{Input: pipe.Rows(c.Randn(16, 3, 16, 16)), Target: pipe.Rows(c.Randn(16, 10)),
		Step: new(int64)}
	c.Synchronize()
	var losses [3]float64
	for i := range losses {
		shim.RefuseGPUWaits(i == 2) // the first step loads kernels
		begun := time.Now()
		r, err := p.Step(context.Background(), b, nn.MSE())
		shim.RefuseGPUWaits(false)
		must.Do(t, err)
		nn.ZeroGrads(model)
		losses[i] = r.Loss
		t.Logf("step %d: loss %v, %v", i, r.Loss, time.Since(begun))
	}
	if losses[1] != losses[0] || losses[2] != losses[0] {
		t.Errorf("losses of the same step: %v", losses)
	}
}
