package main

import (
	"runtime"
	"time"

	"penstock.example/torch"
)

// product is a product of two 1024 x 1024 matrices of float32 on one thread.
type product struct {
	GFLOPS float64 `json:"gflops"`
	Peak   float64 `json:"peak_gflops"` // the core's rate of fused multiply-adds
	Share  float64 `json:"share"`       // median over rounds, each the best of eight products against the best of eight peaks measured next to it
}

func measureProduct(repeats int) product {
	const n = 1024
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c := torch.NewCtx(torch.Options{Threads: 1})
	defer c.Close()
	x := c.Ones(torch.Float32, n, n)
	mark := c.Mark()
	// The best of eight, as the peak is: both are what the core can do when nobody else uses it.
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
	var rates, peaks, shares []float64
	for range repeats {
		peak, rate := torch.FMAPeak(), multiply()
		rates, peaks = append(rates, rate/1e9), append(peaks, peak/1e9)
		if peak > 0 {
			shares = append(shares, rate/peak)
		}
	}
	return product{GFLOPS: median(rates), Peak: median(peaks), Share: median(shares)}
}
