package plan

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"penstock.example/internal/must"
	"penstock.example/remat"
)

// madeUp is a chain whose units cost what those of a network do: some several times as much as others,
// in a pattern that repeats.
func madeUp(units int) remat.Chain {
	c := remat.Chain{Input: 1 << 20, Loss: remat.Loss{Backward: 5}}
	for i := range units {
		l := remat.Layer{Name: fmt.Sprint("unit", i), Forward: float64(60 + i*i*31%170),
			Output: int64(1+i*7%5) << 18, WeightGradient: int64(1+i*13%9) << 16}
		l.ForwardNoGrad, l.Backward = l.Forward, 2*l.Forward+float64(i*17%40)
		l.Saved, l.Gradient = l.Output*3, l.Output
		c.Layers = append(c.Layers, l)
	}
	return c
}

// devices is a machine of equal devices.
func devices(n int, bytes int64) (m Machine) {
	for i := range n {
		m.Devices = append(m.Devices, Device{Name: fmt.Sprint("d", i), Bytes: bytes})
	}
	return m
}

// scaled is a profile of micro-batches of several sizes.
func scaled(c remat.Chain, batch int, chunks ...int) (p Profile) {
	for _, m := range chunks {
		p.Measured = append(p.Measured, Costs{Rows: batch / m, Chain: Scaled(c, 16, batch/m)})
	}
	return p
}

// processor is the processor time that the process has taken, which other processes do not change.
func processor(b *testing.B) time.Duration {
	var used syscall.Rusage
	must.Do(b, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// reportProcessor reports the processor time of one search since began.
func reportProcessor(b *testing.B, began time.Duration) {
	b.ReportMetric((processor(b)-began).Seconds()/float64(b.N), "cpu-s/op")
}

func reportGap(b *testing.B, r *Result) {
	gap := 0.0
	for _, o := range r.Schedules {
		if o.Plan == nil {
			b.Logf("%s: %s", o.Schedule, o.Lost)
			continue
		}
		gap = max(gap, float64(o.Plan.Step)/float64(o.LowerBound)-1)
		b.Logf("%s: %v, bound %v %s", o.Schedule, o.Plan.Step, o.LowerBound, o.Lost)
	}
	b.ReportMetric(100*(float64(r.Best.Step)/float64(r.LowerBound)-1), "%gap")
	b.ReportMetric(100*gap, "%worst-gap")
}

// 100 units on 8 devices, 6 schedules, 6 numbers of micro-batches.
func BenchmarkSearch(b *testing.B) {
	p := scaled(madeUp(100), 512, 4, 8, 16, 32, 64, 128)
	began := processor(b)
	for b.Loop() {
		r := must.Get(Search(context.Background(), p, devices(8, 0), Options{Batch: 512, Devices: 8,
			Schedules: []string{"gpipe", "1f1b", "zb-h1", "interleaved", "interleaved-zb", "zb-v"}}))(b)
		reportGap(b, r)
	}
	reportProcessor(b, began)
}

// The same where memory decides.
func BenchmarkSearchLimit(b *testing.B) {
	p := Profile{[]Costs{{Chain: madeUp(48)}}}
	w := Options{MicroBatches: []int{8}, Devices: 4, Schedules: []string{"1f1b"}}
	free := must.Get(Search(context.Background(), p, devices(4, 0), w))(b)
	w.Limit = free.Best.Peaks[0] * 6 / 10
	began := processor(b)
	for b.Loop() {
		r := must.Get(Search(context.Background(), p, devices(4, 0), w))(b)
		reportGap(b, r)
	}
	reportProcessor(b, began)
}
