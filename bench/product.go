package main

import (
	"runtime"
	"time"

	"penstock.example/torch"
)

// product is a product of two 1024 x 1024 matrices of float32 on one thread.
type product struct {
	rate, peak float64 // GFLOP/s; peak is the core's rate of fused multiply-adds
	share      spread  // of rounds
}

func measureProduct(repeats int) product {
	const n = 1024
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c := torch.NewCtx(torch.Options{Threads: 1})
	defer c.Close()
	x := c.Ones(torch.Float32, n, n)
	mark := c.Mark()
	// Both are the best of eight: what the core can do while nobody else uses it.
	multiply := func() float64 {
		best := 0.0
		for range 8 {
			start := time.Now()
			c.Mm(x, x)
			best = max(best, 2*n*n*n/time.Since(start).Seconds())
			c.Release(mark)
		}
		return best
	}
	multiply()
	var rates, peaks []float64
	for range repeats {
		peaks, rates = append(peaks, torch.FMAPeak()/1e9), append(rates, multiply()/1e9)
	}
	return product{median(rates), median(peaks), spreadOf(ratios(rates, peaks))}
}
