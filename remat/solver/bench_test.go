//go:build unix

package solver

import (
	"context"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	. "penstock.example/remat"
)

// measured is a chain as rotor's solver has been timed with: forwards of 1 to 10 ms and backwards
// of twice that; outputs of 1 to 10 MB, of which once to four times as much is saved; temporaries
// up to an output's size.
func measured(layers int, seed uint64) Chain {
	r := rand.New(rand.NewPCG(seed, 339))
	between := func(a, b float64) float64 { return a + (b-a)*r.Float64() }
	input := int64(between(1e6, 10e6))
	c := Chain{Input: input, InputGradient: input}
	for range layers {
		forward, output := between(1000, 10000), between(1e6, 10e6)
		l := Layer{
			Forward: forward, ForwardNoGrad: forward, Backward: 2 * forward,
			Output: int64(output), Saved: int64(output * between(1, 4)), Gradient: int64(output),
			ForwardTmp: int64(between(0, output)), BackwardTmp: int64(between(0, output)),
		}
		l.ForwardNoGradTmp = l.ForwardTmp
		c.Layers = append(c.Layers, l)
	}
	return c
}

// shareOf is a share of the peak of the plan without recomputation.
func shareOf(b testing.TB, c Chain, share float64) int64 {
	greatest, err := Greatest(c)
	if err != nil {
		b.Fatal(err)
	}
	return int64(share * float64(greatest))
}

// processor reports the processors' time per operation, which other programs on the machine change
// less than the clock's.
func processor(b *testing.B) (report func()) {
	used := func() time.Duration {
		var r syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
			b.Fatal(err)
		}
		return time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	before := used()
	return func() { b.ReportMetric(float64((used()-before).Microseconds())/1000/float64(b.N), "cpu-ms/op") }
}

// alikes is a chain of layers that are all the same.
func alikes(layers int) Chain {
	c := Chain{Input: 4e6, InputGradient: 4e6}
	for range layers {
		c.Layers = append(c.Layers, Layer{Forward: 10, ForwardNoGrad: 10, Backward: 20, Output: 4e6, Saved: 12e6, Gradient: 4e6})
	}
	return c
}

// BenchmarkSteps solves a chain exactly, for all limits.
func BenchmarkSteps(b *testing.B) {
	for name, chain := range map[string]func(int) Chain{"ragged": func(layers int) Chain { return measured(layers, 1) }, "even": alikes} {
		for _, layers := range []int{10, 20, 30, 40, 60} {
			b.Run(fmt.Sprintf("%s/%d", name, layers), func(b *testing.B) {
				t := newTerms(chain(layers))
				var s *steps
				report := processor(b)
				for b.Loop() {
					var err error
					if s, err = newSteps(context.Background(), t, newBounds(t), defaultSteps); err != nil || s == nil {
						b.Fatal(s, err)
					}
				}
				report()
				b.ReportMetric(float64(s.size())/1e6, "MB")
				b.ReportMetric(float64(len(s.whole())), "plans")
			})
		}
	}
}

// BenchmarkLeast is the least limit, and a plan that takes no more, of chains without regularity,
// of layers that are all the same, and of repeated blocks.
func BenchmarkLeast(b *testing.B) {
	for _, kind := range []struct {
		name  string
		chain func(layers int) Chain
	}{
		{"ragged", func(layers int) Chain { return measured(layers, 1) }},
		{"weights", func(layers int) Chain { return trained(measured(layers, 1)) }},
		{"blocks", func(layers int) Chain { return blocks(layers, 12, 0.1, 1) }},
		{"even", alikes},
	} {
		for _, layers := range []int{100, 1000, 5000} {
			b.Run(fmt.Sprintf("%s/%d", kind.name, layers), func(b *testing.B) {
				c := kind.chain(layers)
				report := processor(b)
				ops := 0
				for b.Loop() {
					p, _, err := Least(c)
					if err != nil {
						b.Fatal(err)
					}
					ops = len(p.Ops)
				}
				report()
				b.ReportMetric(float64(ops), "operations")
			})
		}
	}
}

// trained has gradients of parameters, and forwards without gradients that need more than those with.
func trained(c Chain) Chain {
	for i := range c.Layers {
		l := &c.Layers[i]
		l.WeightGradient, l.ForwardNoGradTmp = l.Output/3, 4*l.ForwardNoGradTmp
	}
	return c
}

// BenchmarkTable makes one table of 500 slots, as a plan under a limit needs, and takes the plan
// from it.
func BenchmarkTable(b *testing.B) {
	for _, layers := range []int{50, 100, 200, 339} {
		for _, share := range []float64{0.3, 0.6} {
			b.Run(fmt.Sprintf("%d/limit=%g", layers, share), func(b *testing.B) {
				c := measured(layers, 1)
				m := shareOf(b, c, share) - c.Input
				var g *grid
				report := processor(b)
				for b.Loop() {
					t := newTerms(c)
					g = newGrid(t, newBounds(t), m, t.unitFor(m, defaultSlots), achievable)
					if err := g.fill(context.Background()); err != nil {
						b.Fatal(err)
					}
					newPath(t).write(g.b, hopeful{g}, 0, t.n, m)
				}
				report()
				b.ReportMetric(float64(g.size())/1e6, "MB")
			})
		}
	}
}

// BenchmarkSolve is all of Solve: to a plan within 0.1 % of the bound.
func BenchmarkSolve(b *testing.B) {
	for _, layers := range []int{50, 100, 200, 339, 1000, 2000} {
		for _, share := range []float64{0.3, 0.6} {
			b.Run(fmt.Sprintf("%d/limit=%g", layers, share), func(b *testing.B) {
				c := measured(layers, 1)
				limit := shareOf(b, c, share)
				var p Plan
				report := processor(b)
				for b.Loop() {
					var err error
					if p, err = Solve(context.Background(), c, limit, Options{}); err != nil {
						b.Fatal(err)
					}
				}
				report()
				b.ReportMetric(100*(p.Time/p.LowerBound-1), "%gap")
			})
		}
	}
}

// BenchmarkCurve makes the table of all limits and intervals, and the curve.
func BenchmarkCurve(b *testing.B) {
	for _, layers := range []int{100, 339} {
		b.Run(fmt.Sprint(layers), func(b *testing.B) {
			c := measured(layers, 1)
			var table *Table
			points := 0
			report := processor(b)
			for b.Loop() {
				var err error
				if table, err = NewTable(context.Background(), c, 0, Options{}); err != nil {
					b.Fatal(err)
				}
				points = len(table.Curve())
			}
			report()
			b.ReportMetric(float64(table.Bytes())/1e6, "MB")
			b.ReportMetric(float64(points), "points")
		})
	}
}

// BenchmarkStage is the curve of a stage of a pipeline.
func BenchmarkStage(b *testing.B) {
	for _, layers := range []int{20, 85} {
		b.Run(fmt.Sprint(layers), func(b *testing.B) {
			c := measured(layers, 1)
			report := processor(b)
			points := 0
			for b.Loop() {
				s, err := NewStage(context.Background(), c, true, false)
				if err != nil {
					b.Fatal(err)
				}
				points = len(s.Curve(96))
			}
			report()
			b.ReportMetric(float64(points), "points")
		})
	}
}
