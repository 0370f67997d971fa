package torch_test

import (
	"runtime"
	"slices"
	"testing"
	"time"

	"penstock.example/torch"
)

// BenchmarkSplit is a backward in two parts beside one in one, of 8 linear layers of width 1024
// with GELU on 512 rows, and of 6 convolutions of 64 channels with batch norm and ReLU on 8 images
// of 32 x 32, by the CPU time of the thread. The metrics are medians of the runs, which alternate:
// milliseconds of each part and of the whole, and how much longer both parts take together. Then
// MiB that are held after the forward, with the gradient of the output, and after the first part.
func BenchmarkSplit(b *testing.B) {
	for _, net := range []struct {
		name  string
		build func(c *torch.Ctx) (prepare func() *torch.Prepared)
	}{{"linear", linears}, {"convolution", convolutions}} {
		b.Run(net.name, func(b *testing.B) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			c := torch.NewCtx(torch.Options{Grad: true, Threads: 1, Seed: 1})
			defer c.Close()
			prepare := net.build(c)
			prepare().Run() // gradients are there, as for all micro-batches but the first
			var whole, first, later []time.Duration
			var forward, between int64
			live := func() int64 { return c.Device().Memory().Live }
			clock := func(list *[]time.Duration, f func()) {
				begin := torch.ThreadTime()
				f()
				*list = append(*list, torch.ThreadTime()-begin)
			}
			for b.Loop() {
				p := prepare()
				clock(&whole, p.Run)
				before := live()
				p = prepare()
				forward = live() - before
				var w *torch.Prepared
				clock(&first, func() {
					w = p.Split()
					p.Run()
				})
				between = live() - before
				clock(&later, w.Run)
			}
			median := func(list []time.Duration) float64 {
				slices.Sort(list)
				return list[len(list)/2].Seconds() * 1e3
			}
			b.ReportMetric(median(whole), "B-ms")
			b.ReportMetric(median(first), "I-ms")
			b.ReportMetric(median(later), "W-ms")
			b.ReportMetric((median(first)+median(later))/median(whole), "(I+W)/B")
			b.ReportMetric(float64(forward)/(1<<20), "F-MiB")
			b.ReportMetric(float64(between)/(1<<20), "I-MiB")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func linears(c *torch.Ctx) func() *torch.Prepared {
	s := newStack(c, 8, 1024)
	return func() *torch.Prepared { return s.prepare(c, 512) }
}

func convolutions(c *torch.Ctx) func() *torch.Prepared {
	const layers, channels = 6, 64
	one := []int64{1, 1}
	box := c.Mailbox()
	var kernels, scales, shifts []*torch.Tensor
	c.NoGrad(func() {
		for range layers {
			kernels = append(kernels, c.MulScalar_(c.Randn(channels, channels, 3, 3), 0.05).SetRequiresGrad(true))
			scales = append(scales, c.Ones(torch.Float32, channels).SetRequiresGrad(true))
			shifts = append(shifts, c.Zeros(torch.Float32, channels).SetRequiresGrad(true))
		}
	})
	return func() *torch.Prepared {
		mark := c.Mark()
		defer c.Release(mark)
		var x *torch.Tensor
		c.NoGrad(func() { x = c.Randn(8, channels, 32, 32) })
		x = c.Gate(box, x)
		for i, k := range kernels {
			x = c.ReLU(c.BatchNorm(c.Conv2d(x, k, nil, one, one, one, 1), scales[i], shifts[i], nil, nil, true, 0.1, 1e-5))
		}
		return c.PrepareBackward([]*torch.Tensor{x}, []*torch.Tensor{c.OnesLike(x)})
	}
}
