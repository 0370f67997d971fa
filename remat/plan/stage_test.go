package plan_test

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"

	. "penstock/remat/plan"
)

// stagePeak is the most bytes of all micro-batches together, added up moment by moment from their own replays.
func stagePeak(t *testing.T, s Stage, plans [][]Op) (peak int64, time float64) {
	tallies := make([]tally, len(plans))
	for b, ops := range plans {
		c := s.Later
		if b == 0 {
			c = s.First
		}
		var err error
		if tallies[b], err = run(c, ops); err != nil {
			t.Fatal(err)
		}
		time += tallies[b].time
	}
	return peakOfStage(s, tallies), time
}

func peakOfStage(s Stage, tallies []tally) (peak int64) {
	weights := int64(0)
	for _, l := range s.First.Layers {
		weights += l.WeightGradient
	}
	for b, own := range tallies {
		before, after, there := int64(0), int64(0), int64(0)
		for k, other := range tallies {
			if k < b {
				before += other.held
			}
			if k > b {
				after += other.held
			}
		}
		if b > 0 {
			there = weights
		}
		peak = max(peak, before+own.peakBefore, there+after+own.peakAfter)
	}
	return peak
}

// stageOf is a stage whose micro-batches have the costs of one chain.
func stageOf(c Chain, k int) Stage {
	later := c
	later.Layers = append([]Layer{}, c.Layers...)
	for i := range later.Layers {
		later.Layers[i].WeightGradient = 0
	}
	return Stage{First: c, Later: later, MicroBatches: k}
}

// TestSolveStageFindsTheBestOfAll compares with every combination of plans of small stages, at limits between the least and the greatest.
func TestSolveStageFindsTheBestOfAll(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 9))
	worse, cases := 0, 0
	for range 120 {
		d := dice{layers: 1 + r.IntN(3), bytes: 40, carries: 2, zeros: 0.1, weights: true}
		s := stageOf(d.chain(r), 2+r.IntN(2))
		all := everyPlan(d.layers, 0, d.layers)
		firsts, laters := make([]tally, len(all)), make([]tally, len(all))
		for i, ops := range all {
			firsts[i], _ = run(s.First, ops)
			laters[i], _ = run(s.Later, ops)
		}
		type outcome struct {
			peak int64
			time float64
		}
		var outcomes []outcome
		least, most := int64(math.MaxInt64), int64(0)
		combine(s.MicroBatches, len(all), func(which []int) {
			tallies := []tally{firsts[which[0]]}
			for _, i := range which[1:] {
				tallies = append(tallies, laters[i])
			}
			o := outcome{peak: peakOfStage(s, tallies)}
			for _, one := range tallies {
				o.time += one.time
			}
			outcomes = append(outcomes, o)
			least, most = min(least, o.peak), max(most, o.peak)
		})
		for q := range int64(12) {
			s.Limit = max(1, least-2+(most-least+2)*q/10)
			got, err := SolveStage(context.Background(), s, Options{})
			if err != nil {
				t.Fatal(err)
			}
			best := math.Inf(1)
			for _, o := range outcomes {
				if o.peak <= s.Limit {
					best = min(best, o.time)
				}
			}
			cases++
			if !got.Feasible {
				if got.Peak <= s.Limit || got.Peak < least {
					t.Fatalf("limit %d, least %d: not feasible below %d", s.Limit, least, got.Peak)
				}
				if !math.IsInf(best, 1) {
					worse++
				}
				continue
			}
			peak, time := stagePeak(t, s, opsOf(got.MicroBatches))
			if peak > s.Limit || peak != got.Peak || time != got.Time {
				t.Fatalf("limit %d of %+v: peak %d, time %v; the plan says %d, %v", s.Limit, s, peak, time, got.Peak, got.Time)
			}
			if got.LowerBound > best*(1+1e-12) {
				t.Fatalf("limit %d of %+v: bound %v; the best is %v", s.Limit, s, got.LowerBound, best)
			}
			if time > best {
				worse++
				t.Logf("limit %d (%d..%d), %d micro-batches of %d layers: %v; %v is possible", s.Limit, least, most, s.MicroBatches, d.layers, time, best)
			}
		}
	}
	t.Logf("%d of %d worse", worse, cases)
}

func opsOf(plans []Plan) (ops [][]Op) {
	for _, p := range plans {
		ops = append(ops, p.Ops)
	}
	return ops
}

// combine calls f with every choice of k numbers below n.
func combine(k, n int, f func([]int)) {
	which := make([]int, k)
	for {
		f(which)
		at := 0
		for at < k {
			if which[at]++; which[at] < n {
				break
			}
			which[at] = 0
			at++
		}
		if at == k {
			return
		}
	}
}
