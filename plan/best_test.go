package plan

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"penstock.example/internal/draws"
	"penstock.example/internal/must"
	"penstock.example/remat"
)

// plainChain is a chain of units that take so many microseconds to go forward, twice as many backward, and
// save as many bytes as given.
func plainChain(times []float64, saved int64) remat.Chain {
	c := remat.Chain{Input: 8}
	for _, f := range times {
		c.Layers = append(c.Layers, remat.Layer{Name: "u", Forward: f, ForwardNoGrad: f, Backward: 2 * f,
			Output: 8, Saved: saved, Gradient: 8, WeightGradient: 4})
	}
	return c
}

// equal is so many times the same.
func equal(n int, x float64) []float64 { return slices.Repeat([]float64{x}, n) }

func search(t *testing.T, p Profile, m Machine, w Options) *Result {
	t.Helper()
	r := must.Get(Search(context.Background(), p, m, w))(t)
	if r.Best == nil {
		t.Fatalf("no plan: %+v", r.Schedules)
	}
	if r.LowerBound > r.Best.Step {
		t.Fatalf("the bound %v is above the step %v", r.LowerBound, r.Best.Step)
	}
	for d, peak := range r.Best.Peaks {
		if limit := r.Best.Limits[d]; limit > 0 && peak > limit {
			t.Fatalf("device %d holds %d of %d bytes", d, peak, limit)
		}
	}
	for _, o := range r.Schedules {
		if o.Plan == r.Best && o.Lost != "" {
			t.Errorf("%s is the best and has lost by %s", o.Schedule, o.Lost)
		}
	}
	return r
}

// Progress is told of each schedule, the lightest first, whatever the limit.
func TestProgress(t *testing.T) {
	want := []string{"1f1b 0/2", "gpipe 1/2"}
	for _, limit := range []int64{0, 1} {
		var told []string
		w := Options{MicroBatches: []int{2}, Devices: 2, Schedules: []string{"gpipe", "1f1b"}, Limit: limit,
			Progress: func(schedule string, done, all int) {
				told = append(told, fmt.Sprintf("%s %d/%d", schedule, done, all))
			}}
		if _, err := Search(t.Context(), Profile{[]Costs{{Chain: plainChain(equal(4, 100), 64)}}},
			devices(2, 0), w); err != nil || !slices.Equal(told, want) {
			t.Errorf("within %d bytes %q is told, want %q (%v)", limit, told, want, err)
		}
	}
}

// On one CPU with two threads, one stage with both beats two stages with one each: it has no bubble.
func TestOneStageWithAllThreads(t *testing.T) {
	var p Profile
	for _, rows := range []int{2, 4, 8, 16} {
		one := plainChain(equal(8, 10+50*float64(rows)), 64)
		two := plainChain(equal(8, 10+26*float64(rows)), 64) // not quite twice as fast
		p.Measured = append(p.Measured, Costs{Rows: rows, Threads: 1, Chain: one},
			Costs{Rows: rows, Threads: 2, Chain: two})
	}
	r := search(t, p, Machine{Devices: []Device{{Name: "cpu", Threads: 2}}}, Options{Batch: 16})
	if b := r.Best; b.Threads != 2 || len(b.Devices) != 1 || !r.Proved {
		t.Errorf("%d devices with %d threads, proved %v; want one with both", len(b.Devices), b.Threads,
			r.Proved)
	}
}

// Without a limit a few large micro-batches are best, as small ones are less efficient. Under a limit
// they would have to be recomputed, and 1F1B with more and smaller ones is faster.
func TestMoreMicroBatchesRatherThanRecomputation(t *testing.T) {
	var p Profile
	for m, slower := range map[int]float64{2: 1, 4: 1.18, 8: 1.4} {
		p.Measured = append(p.Measured, Costs{Rows: 16 / m,
			Chain: plainChain(equal(6, slower*800/float64(m)), 1600/int64(m))})
	}
	slices.SortFunc(p.Measured, func(a, b Costs) int { return a.Rows - b.Rows })
	w := Options{Batch: 16, Devices: 2, Schedules: []string{"gpipe", "1f1b"}}
	free := search(t, p, devices(2, 0), w)
	if free.Best.MicroBatches != 2 {
		t.Fatalf("%d micro-batches without a limit, want 2", free.Best.MicroBatches)
	}
	w.Limit = slices.Max(free.Best.Peaks) * 11 / 20
	r := search(t, p, devices(2, 0), w)
	recomputed := 0
	for _, s := range r.Best.Planned.Stages {
		recomputed += s.Recomputed()
	}
	if r.Best.Schedule != "1f1b" || r.Best.MicroBatches <= 2 || recomputed > 0 {
		t.Errorf("%s with %d micro-batches and %d recomputations, want 1f1b with more than 2 and none",
			r.Best.Schedule, r.Best.MicroBatches, recomputed)
	}
	few := w
	few.MicroBatches = []int{2}
	if again := search(t, p, devices(2, 0), few); again.Best.Step <= r.Best.Step {
		t.Errorf("2 micro-batches with recomputation take %v, more take %v", again.Best.Step, r.Best.Step)
	}
}

// A slow link moves the cut to where little crosses it.
func TestSlowLinkMovesTheCut(t *testing.T) {
	c := plainChain(equal(8, 100), 5000)
	for i := range c.Layers {
		c.Layers[i].Output, c.Layers[i].Gradient = 4000, 4000
	}
	c.Layers[2].Output, c.Layers[2].Gradient = 8, 8
	p, w := Profile{[]Costs{{Chain: c}}},
		Options{MicroBatches: []int{6}, Devices: 2, Schedules: []string{"1f1b"}}
	m := devices(2, 0)
	if got := search(t, p, m, w).Best.Balance; !slices.Equal(got, []int{4, 4}) {
		t.Errorf("%v without a slow link", got)
	}
	m.Links = []Link{{Latency: time.Microsecond, Bandwidth: 1e7}} // 400 us for 4000 bytes
	if got := search(t, p, m, w).Best.Balance; !slices.Equal(got, []int{3, 5}) {
		t.Errorf("%v with a slow link, want a cut where 8 bytes cross it", got)
	}
}

// Replicas share the rows of a step and sum their gradients, which a slow link makes too slow.
func TestReplicas(t *testing.T) {
	var p Profile
	for _, rows := range []int{1, 2, 4, 8, 16} {
		c := plainChain([]float64{20 * float64(rows), 300 * float64(rows), 20 * float64(rows)}, 64)
		for i := range c.Layers {
			c.Layers[i].WeightGradient = 1 << 20
		}
		p.Measured = append(p.Measured, Costs{Rows: rows, Chain: c})
	}
	m, w := devices(2, 0), Options{Batch: 16, Replicas: []int{1, 2}, Schedules: []string{"1f1b"}}
	if r := search(t, p, m, w); r.Best.Replicas != 2 {
		t.Errorf("%d replicas of a unit that no cut divides, want 2", r.Best.Replicas)
	}
	m.Links = []Link{{Bandwidth: 1e8}}
	if r := search(t, p, m, w); r.Best.Replicas != 1 {
		t.Errorf("%d replicas where sums take too long, want 1", r.Best.Replicas)
	}
}

// A step's first micro-batch makes gradients and the others add to them, which is another time: the
// step is the sum of all of them, and where loads decide the cut follows them.
func TestLaterBackwardsCount(t *testing.T) {
	c := plainChain(equal(3, 10), 16)
	c.Layers[2].BackwardLater = 80
	one := func(n int, s string) *Candidate {
		return search(t, Profile{[]Costs{{Chain: c}}}, devices(n, 0),
			Options{MicroBatches: []int{4}, Devices: n, Schedules: []string{s}}).Best
	}
	// Forward 30, backward 60, three of four with 60 more.
	if p := one(1, "gpipe"); p.Step != (4*90+3*60)*time.Microsecond {
		t.Errorf("a step of one device takes %v, want 540 us", p.Step)
	}
	// By the first micro-batch the borders after one and two units are alike.
	for _, s := range []string{"1f1b", "zb-h1"} {
		if p := one(2, s); !slices.Equal(p.Balance, []int{2, 1}) {
			t.Errorf("%s: balance %v, want the slow unit alone", s, p.Balance)
		}
	}
}

// With a cut that fits but is far from the best, as of a network whose first layers have the
// activations and whose last have the weights, few plans of devices lead to a cut that is nearly as
// good as one that many find.
func TestFewPlansComeClose(t *testing.T) {
	var c remat.Chain
	for i := range 40 {
		l := remat.Layer{Name: fmt.Sprint("unit", i), Forward: 10, ForwardNoGrad: 9, Backward: 20,
			Output: int64(60 - i), WeightGradient: int64(i * i / 4)}
		l.Saved, l.Gradient = 3*l.Output, l.Output
		c.Layers = append(c.Layers, l)
	}
	for _, limit := range draws.Pick([]int64{8600}, []int64{8300, 8600, 9200}) {
		var steps []time.Duration
		for _, plans := range []int{12, 2000} {
			r, err := Search(t.Context(), Profile{[]Costs{{Chain: c}}}, devices(2, 0),
				Options{MicroBatches: []int{8}, Schedules: []string{"1f1b"}, Devices: 2, State: 1,
					Limit: limit, Plans: plans})
			if err != nil || r.Best == nil {
				t.Fatalf("within %d bytes nothing is found: %v %v", limit, err, r)
			}
			steps = append(steps, r.Best.Step)
		}
		t.Logf("within %d bytes: %v with few plans, %v with many", limit, steps[0], steps[1])
		if float64(steps[0]) > 1.05*float64(steps[1]) {
			t.Errorf("within %d bytes the plan found with few plans takes %v, with many %v", limit,
				steps[0], steps[1])
		}
	}
}
