package solver_test

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"

	. "penstock.example/remat"
	. "penstock.example/remat/solver"
)

// TestTableAnswersForEveryIntervalAndLimit compares a table with every plan of every interval of
// small chains.
func TestTableAnswersForEveryIntervalAndLimit(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, d := range kindsOfChains {
		for range 10 {
			c := d.chain(r)
			for _, o := range []Options{{}, {Steps: -1, Slots: 5000}} {
				table, err := NewTable(context.Background(), c, 0, o)
				if err != nil {
					t.Fatal(err)
				}
				for last := range d.layers + 1 {
					for first := range last + 1 {
						compareInterval(t, c, table, first, last)
					}
				}
			}
		}
	}
}

// compareInterval runs all plans of an interval in a chain that begins with it: the layers after it
// are replaced by a loss that hands in y(last+1) and takes nothing itself.
func compareInterval(t *testing.T, c Chain, table *Table, first, last int) {
	n := len(c.Layers)
	cut := func(ops []Op) (peak int64, extra float64) {
		w := start(c)
		w.x[0] = 0
		w.x[first] = 1
		if last < n {
			w.loss, w.next = true, last
		}
		outside := w.bytes(c, -1)
		if last < n {
			outside -= gradientBytes(c, last+1) // counted within
		}
		for _, o := range ops {
			after, most, time, ok := w.step(c, o)
			if !ok {
				t.Fatalf("%v is not allowed in %s", o, FormatOps(ops))
			}
			peak = max(peak, most-outside)
			if o.Kind == Forward || o.Kind == ForwardKeep {
				extra += time
			}
			w = after
		}
		return peak, extra
	}
	type cost struct {
		peak  int64
		extra float64
	}
	var costs []cost
	for _, ops := range everyPlan(n, first, last) {
		peak, extra := cut(ops)
		costs = append(costs, cost{peak, extra})
	}
	for _, at := range costs {
		for _, bytes := range []int64{at.peak - 1, at.peak} {
			best, possible := 0.0, false
			for _, k := range costs {
				if k.peak <= bytes && (!possible || k.extra < best) {
					best, possible = k.extra, true
				}
			}
			got, ok := table.Cost(first, last, bytes)
			if ok != possible || ok && (math.Abs(got-best) > 1e-6*(best+100)) {
				t.Fatalf("layers %d to %d of %+v in %d bytes: %v, %v; want %v, %v", first, last, c, bytes, got, ok, best, possible)
			}
		}
	}
}

// gradientBytes is all of y(i).
func gradientBytes(c Chain, i int) int64 {
	w := world{next: i - 1, loss: true}
	return w.bytes(c, -1) - weightsAfter(c, i)
}

func weightsAfter(c Chain, i int) (sum int64) {
	for _, l := range c.Layers[i:] {
		sum += l.WeightGradient
	}
	return sum
}

// TestCurveIsOfPlansThatExist looks that the points are what the plans of their limits are, that no
// point beats another, and that the curve begins at the least limit and ends without recomputation.
func TestCurveIsOfPlansThatExist(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, d := range append(kindsOfChains, dice{layers: 30, bytes: 1 << 30, weights: true, carries: 20, zeros: 0.1}) {
		for _, o := range []Options{{}, {Steps: -1, Slots: 1}, {Steps: -1, Slots: 7}, {Steps: -1}} {
			c := d.chain(r)
			table, err := NewTable(context.Background(), c, 0, o)
			if err != nil {
				t.Fatal(err)
			}
			curve := table.Curve()
			for i, p := range curve {
				plan := table.Plan(p.Limit)
				got, err := Check(c, plan.Ops)
				if err != nil {
					t.Fatal(err)
				}
				if p.Peak > p.Limit || got.Peak != p.Peak || got.Time-p.Time > 1e-9*p.Time || p.Time-got.Time > 1e-9*p.Time {
					t.Fatalf("point %+v of %+v; the plan has peak %d, time %v", p, c, got.Peak, got.Time)
				}
				if i > 0 && (p.Peak <= curve[i-1].Peak || p.Time >= curve[i-1].Time) {
					t.Fatalf("point %+v follows %+v", p, curve[i-1])
				}
			}
			least, at, err := Least(c)
			if err != nil {
				t.Fatal(err)
			}
			report, err := Check(c, least.Ops)
			if err != nil || report.Peak != least.Peak || report.PeakOp != at {
				t.Fatalf("least %d at operation %d of %+v: %+v, %v", least.Peak, at, c, report, err)
			}
			greatest, err := Greatest(c)
			if err != nil {
				t.Fatal(err)
			}
			plain := table.Plan(greatest)
			if last := curve[len(curve)-1]; curve[0].Peak != least.Peak || last.Peak > greatest || last.Time != plain.Time || len(plain.Ops) != 2*len(c.Layers)+1 {
				t.Fatalf("the curve of %+v is %+v; want it from %d to %d", c, curve, least.Peak, greatest)
			}
		}
	}
}
