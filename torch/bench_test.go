package torch_test

import (
	"testing"
	"time"

	"penstock.example/internal/shim"
	"penstock.example/torch"
)

// BenchmarkProduct is a product of two 1024 x 1024 matrices on one thread. The best one is reported as a
// share of the core's rate of multiply-adds.
func BenchmarkProduct(b *testing.B) {
	c := torch.NewCtx(torch.Options{Threads: 1})
	defer c.Close()
	x := c.Ones(torch.Float32, 1024, 1024)
	mark := c.Mark()
	var rate, peak float64
	for b.Loop() {
		start := time.Now()
		c.Op("aten::mm", x, x)
		rate = max(rate, 2*1024*1024*1024/time.Since(start).Seconds())
		c.Release(mark)
	}
	for range 8 {
		peak = max(peak, shim.FMAPeak())
	}
	b.ReportMetric(rate/1e9, "GFLOP/s")
	b.ReportMetric(rate/peak, "of-peak")
}
