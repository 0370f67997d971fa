package torch_test

import (
	"testing"

	"penstock.example/torch"
)

// BenchmarkGEMM is a product of two 1024 x 1024 matrices on one thread, as a share of the core's
// rate of multiply-adds.
func BenchmarkGEMM(b *testing.B) {
	c := torch.NewCtx(torch.Options{Threads: 1})
	defer c.Close()
	x := c.Ones(torch.Float32, 1024, 1024)
	mark := c.Mark()
	peak := torch.FMAPeak()
	for b.Loop() {
		c.Mm(x, x)
		c.Release(mark)
	}
	rate := 2 * 1024 * 1024 * 1024 * float64(b.N) / b.Elapsed().Seconds()
	b.ReportMetric(rate/1e9, "GFLOP/s")
	if peak > 0 {
		b.ReportMetric(rate/peak, "of-peak")
	}
}

// BenchmarkAdd is what a call costs: an operator on four elements.
func BenchmarkAdd(b *testing.B) {
	c := torch.NewCtx(torch.Options{Threads: 1})
	defer c.Close()
	x := c.Ones(torch.Float32, 4)
	mark := c.Mark()
	b.ReportAllocs()
	for b.Loop() {
		c.Add(x, x)
		c.Release(mark)
	}
}
