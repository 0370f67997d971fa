package solver_test

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	. "penstock/remat"
	. "penstock/remat/solver"
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

// TestSolveStageComesCloseToTheBestOfAll compares with every combination of plans of small stages, at limits between the least and the greatest: there are plans wherever there can be, the bound is
// below the best, and in 29 of 30 cases the best is found.
func TestSolveStageComesCloseToTheBestOfAll(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 9))
	solved, missed := 0, 0
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
			if !got.Feasible {
				if got.Peak <= s.Limit || got.Peak < least {
					t.Fatalf("limit %d, least %d: not feasible below %d", s.Limit, least, got.Peak)
				}
				if !math.IsInf(best, 1) {
					t.Fatalf("limit %d of %+v: not feasible below %d; %v is possible", s.Limit, s, got.Peak, best)
				}
				continue
			}
			peak, time := stagePeak(t, s, opsOf(got.MicroBatches))
			if peak > s.Limit || peak != got.Peak || time != got.Time {
				t.Fatalf("limit %d of %+v: peak %d, time %v; the plan says %d, %v", s.Limit, s, peak, time, got.Peak, got.Time)
			}
			if got.LowerBound > best {
				t.Fatalf("limit %d of %+v: bound %v; the best is %v", s.Limit, s, got.LowerBound, best)
			}
			if time > 1.2*best {
				t.Fatalf("limit %d of %+v: time %v; %v is possible", s.Limit, s, time, best)
			}
			solved++
			if time > best {
				missed++
			}
		}
	}
	if missed*30 > solved {
		t.Errorf("of %d stages, %d have a faster plan", solved, missed)
	}
}

// TestSolveStageBeatsPolicies compares with what pipelines do as a rule, wherever that fits, and counts every byte by Check's replay.
func TestSolveStageBeatsPolicies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		longest := 20
		if racing {
			longest = 6
		}
		d := dice{layers: 1 + r.IntN(longest), bytes: []int64{100, 1 << 30}[r.IntN(2)], carries: r.IntN(6), zeros: 0.1, weights: r.IntN(2) == 0, zeroTimes: r.IntN(2) == 0, gradientLikeOutputs: r.IntN(2) == 0}
		s := stageOf(d.chain(r), 1+r.IntN(6))
		never, always := never(d.layers), always(d.layers)
		policies := map[string][][]Op{"never": repeat(never, never, s.MicroBatches), "always": repeat(always, always, s.MicroBatches), "except the first": repeat(never, always, s.MicroBatches)}
		least, most := int64(math.MaxInt64), int64(0)
		for _, plans := range policies {
			peak, _ := stageReport(t, s, plans)
			least, most = min(least, peak), max(most, peak)
		}
		s.Limit = max(1, rapid.SampledFrom([]int64{least, most, least + (most-least)/2, least + (most-least)/10, least - least/5}).Draw(t, "limit"))
		o := Options{Steps: rapid.SampledFrom([]int64{0, -1}).Draw(t, "steps")}
		got, err := SolveStage(context.Background(), s, o)
		if err != nil {
			t.Fatal(err)
		}
		if !got.Feasible {
			if s.Limit >= least || got.Peak <= s.Limit {
				t.Fatalf("limit %d of %+v: not feasible below %d; a policy needs %d", s.Limit, s, got.Peak, least)
			}
			again := s
			again.Limit = got.Peak
			if second, err := SolveStage(context.Background(), again, o); err != nil || !second.Feasible {
				t.Fatalf("limit %d of %+v: not feasible, though said to be the least: %v", again.Limit, s, err)
			}
			return
		}
		peak, time := stageReport(t, s, opsOf(got.MicroBatches))
		if peak > s.Limit || peak != got.Peak || math.Abs(time-got.Time) > 1e-9*time || !(got.LowerBound <= got.Time) {
			t.Fatalf("limit %d of %+v: peak %d, time %v; the plan says %d, %v, bound %v", s.Limit, s, peak, time, got.Peak, got.Time, got.LowerBound)
		}
		for b, p := range got.MicroBatches {
			c := s.Later
			if b == 0 {
				c = s.First
			}
			if err := CheckPlan(c, p); err != nil {
				t.Fatalf("micro-batch %d: %v", b, err)
			}
		}
		for name, plans := range policies {
			if peak, other := stageReport(t, s, plans); peak <= s.Limit && (time > other*(1+1e-9) || got.LowerBound > other*(1+1e-9)) {
				t.Fatalf("limit %d of %+v: time %v, bound %v; the policy %s takes %v", s.Limit, s, time, got.LowerBound, name, other)
			}
		}
		if s.MicroBatches == 1 {
			p, err := Solve(context.Background(), s.First, s.Limit, o)
			if err != nil || p.Time != got.Time || p.Peak != got.Peak {
				t.Fatalf("limit %d of %+v: one micro-batch takes %v, a chain alone %v, %v", s.Limit, s, got.Time, p.Time, err)
			}
		}
	})
}

// never recomputes nothing, always everything but the input.
func never(layers int) (ops []Op) {
	for i := range layers {
		ops = append(ops, Op{Kind: ForwardSave, Layer: i})
	}
	ops = append(ops, Op{Kind: LossStep})
	for i := layers - 1; i >= 0; i-- {
		ops = append(ops, Op{Kind: Backward, Layer: i})
	}
	return ops
}

func always(layers int) (ops []Op) {
	for i := range layers {
		kind := Forward
		if i == 0 {
			kind = ForwardKeep
		}
		ops = append(ops, Op{Kind: kind, Layer: i})
	}
	plain := never(layers)
	ops = append(append(ops, Op{Kind: LossStep}), plain[:layers]...)
	return append(ops, plain[layers+1:]...)
}

func repeat(first, later []Op, k int) [][]Op {
	plans := [][]Op{first}
	for range k - 1 {
		plans = append(plans, later)
	}
	return plans
}

// stageReport adds up a stage from Check's reports: own bytes moment by moment, and what the others hold.
func stageReport(t *rapid.T, s Stage, plans [][]Op) (peak int64, time float64) {
	tallies := make([]tally, len(plans))
	for b, ops := range plans {
		c := s.Later
		if b == 0 {
			c = s.First
		}
		report, err := Check(c, ops)
		if err != nil {
			t.Fatal(err)
		}
		own, err := run(c, ops)
		if err != nil || own.peak != report.Peak || own.held != report.Held {
			t.Fatalf("peak %d, held %d; the replay says %d, %d: %v", own.peak, own.held, report.Peak, report.Held, err)
		}
		tallies[b] = own
		time += report.Time
	}
	return peakOfStage(s, tallies), time
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
