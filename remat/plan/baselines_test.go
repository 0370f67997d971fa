package plan_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"penstock/remat/plan"
)

func TestBaselines(t *testing.T) {
	sequential := func(layers, segments int) []plan.Op {
		list, err := plan.Sequential(layers, segments)
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	for _, test := range []struct {
		reason string
		got    []plan.Op
		want   string
	}{
		{"save everything", plan.None(3), "S0 S1 S2 L B2 B1 B0"},
		{"of one layer", plan.None(1), "S0 L B0"},
		{"keep the input", plan.All(3), "K0 F1 F2 L K0 F1 S2 B2 K0 S1 B1 S0 B0"},
		{"keep the input, one layer", plan.All(1), "K0 L S0 B0"},
		{"one segment, which is the last", sequential(3, 1), "S0 S1 S2 L B2 B1 B0"},
		{"two segments of 2 and 3 layers", sequential(5, 2), "K0 F1 S2 S3 S4 L B4 B3 B2 S0 S1 B1 B0"},
		{"three segments of 2, 2 and 3", sequential(7, 3), "K0 F1 K2 F3 S4 S5 S6 L B6 B5 B4 S2 S3 B3 B2 S0 S1 B1 B0"},
		{"a layer a segment", sequential(3, 3), "K0 K1 S2 L B2 S1 B1 S0 B0"},
		{"the root of 7 is 3", plan.SequentialSqrt(7), plan.FormatOps(sequential(7, 3))},
		{"the root of 1", plan.SequentialSqrt(1), "S0 L B0"},
	} {
		if got := plan.FormatOps(test.got); got != test.want {
			t.Errorf("%s: got %s, want %s", test.reason, got, test.want)
		}
		layers := 0
		for _, o := range test.got {
			layers = max(layers, o.Layer+1)
		}
		if _, err := plan.Check(plain(layers, 2), test.got); err != nil {
			t.Errorf("%s: %v", test.reason, err)
		}
	}
	for _, segments := range []int{-1, 0, 4} {
		if list, err := plan.Sequential(3, segments); err == nil || !strings.Contains(err.Error(), "want 1 to 3") {
			t.Errorf("%d segments: %v, error %v", segments, list, err)
		}
	}
}

// TestBaselineCosts: closed forms on equal layers.
func TestBaselineCosts(t *testing.T) {
	for layers := 1; layers <= 40; layers++ {
		c := plain(layers, 3)
		check := func(name string, list []plan.Op, peak int64, again int) {
			report, err := plan.Check(c, list)
			if err != nil || report.Peak != peak || report.Recomputed != again || report.Extra != float64(again) {
				t.Errorf("%s of %d layers: peak %d, %d again, %v; want %d and %d", name, layers, report.Peak, report.Recomputed, err, peak, again)
			}
		}
		n := int64(layers)
		check("none", plan.None(layers), 1+3*n+2, 0) // x0, all X, and at the last layer's backward y(n) and y(n-1)
		alone := int64(0)
		if layers > 1 {
			alone = 1 // x(n-1), which in a chain of one layer is x0
		}
		check("all", plan.All(layers), 1+alone+3+2, layers*(layers+1)/2)
		runs := mustCheck(t, c, plan.All(layers)).Layers
		for i, r := range runs {
			// rotor with its least memory counts the batches of its batch norms so: on 11 layers 12 in the first and 2 in the last.
			if r.NoGrad+r.Grad != layers+1-i {
				t.Errorf("all of %d layers: layer %d runs %d times, want %d", layers, i, r.NoGrad+r.Grad, layers+1-i)
			}
		}
		for segments := 1; segments <= layers; segments++ {
			list, err := plan.Sequential(layers, segments)
			if err != nil {
				t.Fatal(err)
			}
			report := mustCheck(t, c, list)
			size := layers / segments
			if again := size * (segments - 1); report.Recomputed != again {
				t.Errorf("%d layers in %d segments: %d again, want all but the last segment's, %d", layers, segments, report.Recomputed, again)
			}
			if held := int64(segments-1) + 1 + 3*int64(layers-size*(segments-1)); segments > 1 && report.Held != held {
				t.Errorf("%d layers in %d segments: %d held, want the segments' inputs and the last segment, %d", layers, segments, report.Held, held)
			}
		}
	}
}

func mustCheck(t interface{ Fatal(...any) }, c plan.Chain, list []plan.Op) plan.Report {
	report, err := plan.Check(c, list)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// revolveOps is every plan of Revolve's kind for layers i to l, up to the loss where l is their number.
func revolveOps(i, l, n int, saved bool) [][]plan.Op {
	op := func(k plan.Kind, layer int) plan.Op { return plan.Op{Kind: k, Layer: layer} }
	if i == n {
		return [][]plan.Op{{op(plan.LossStep, 0)}}
	}
	var out [][]plan.Op
	wrap := func(before []plan.Op, inner [][]plan.Op, after []plan.Op, outer [][]plan.Op) {
		for _, a := range inner {
			for _, b := range outer {
				out = append(out, slices.Concat(before, a, after, b))
			}
		}
	}
	none := [][]plan.Op{nil}
	if i == l {
		wrap([]plan.Op{op(plan.ForwardSave, i)}, none, []plan.Op{op(plan.Backward, i)}, none)
	} else if saved {
		wrap([]plan.Op{op(plan.ForwardSave, i)}, revolveOps(i+1, l, n, saved), []plan.Op{op(plan.Backward, i)}, none)
	}
	before := []plan.Op{op(plan.ForwardKeep, i)}
	for j := i + 1; j <= l; j++ {
		outer := revolveOps(i, j-1, n, saved)
		switch {
		case !saved || j == n:
			wrap(before, revolveOps(j, l, n, saved), nil, outer)
		case j == l:
			wrap(append(slices.Clone(before), op(plan.ForwardSave, j)), none, []plan.Op{op(plan.Backward, j)}, outer)
		default:
			wrap(append(slices.Clone(before), op(plan.ForwardSave, j)), revolveOps(j+1, l, n, saved), []plan.Op{op(plan.Backward, j)}, outer)
		}
		before = append(before, op(plan.Forward, j))
	}
	return out
}

// TestRevolveIsTheFastestOfItsKind: with a slot for each byte it is as fast as the fastest of all plans of its kind, and finds one wherever there is one.
func TestRevolveIsTheFastestOfItsKind(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := chains(4).Draw(t, "chain")
		saved := rapid.Bool().Draw(t, "saved")
		n := len(c.Layers)
		type point struct {
			peak int64
			time float64
		}
		var points []point
		most := int64(0)
		for _, list := range revolveOps(0, n, n, saved) {
			report := mustCheck(t, c, list)
			points = append(points, point{report.Peak, report.Time})
			most = max(most, report.Peak)
		}
		slots := int(max(1, most-c.Input))
		r, err := plan.NewRevolve(context.Background(), c, most, plan.RevolveConfig{Slots: slots, Saved: saved})
		if err != nil {
			t.Fatal(err)
		}
		for limit := c.Input; limit <= most; limit++ {
			want := math.Inf(1)
			for _, p := range points {
				if p.peak <= limit {
					want = min(want, p.time)
				}
			}
			list, ok := r.Ops(limit)
			if ok == math.IsInf(want, 1) {
				t.Fatalf("limit %d: a plan %t, want time %v", limit, ok, want)
			}
			if !ok {
				continue
			}
			if report := mustCheck(t, c, list); report.Peak > limit || report.Time > want*(1+1e-6) {
				t.Fatalf("limit %d: peak %d, time %v, want %v: %v", limit, report.Peak, report.Time, want, list)
			}
		}
	})
}

// TestRevolveKeepsLimits: with few slots too, whatever the chain.
func TestRevolveKeepsLimits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := chains(9).Draw(t, "chain")
		most := mustCheck(t, c, plan.None(len(c.Layers))).Peak
		config := plan.RevolveConfig{Slots: rapid.IntRange(1, 40).Draw(t, "slots"), Saved: rapid.Bool().Draw(t, "saved")}
		r, err := plan.NewRevolve(context.Background(), c, most, config)
		if err != nil {
			t.Fatal(err)
		}
		for limit := int64(0); limit <= most+3; limit++ {
			if list, ok := r.Ops(limit); ok {
				if report := mustCheck(t, c, list); report.Peak > limit {
					t.Fatalf("limit %d: peak %d", limit, report.Peak)
				}
			}
		}
	})
}

func TestRevolveRefuses(t *testing.T) {
	c := plain(3, 2)
	if _, err := plan.NewRevolve(context.Background(), c, 0, plan.RevolveConfig{}); err == nil || !strings.Contains(err.Error(), "room for the input") {
		t.Errorf("error %v", err)
	}
	if _, err := plan.NewRevolve(context.Background(), c, 9, plan.RevolveConfig{Slots: -1}); err == nil || !strings.Contains(err.Error(), "-1 slots") {
		t.Errorf("error %v", err)
	}
	if _, err := plan.NewRevolve(context.Background(), plan.Chain{}, 9, plan.RevolveConfig{}); err == nil {
		t.Error("a chain without layers")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := plan.NewRevolve(ctx, c, 9, plan.RevolveConfig{}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	r, err := plan.NewRevolve(context.Background(), c, 9, plan.RevolveConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if list, ok := r.Ops(2); ok {
		t.Errorf("a plan in 2 bytes: %v", list)
	}
}

// random is a chain as those on which solvers are measured elsewhere: times of 1 to 10 ms, backwards twice as long, outputs of 1 to 10 MB, saved bytes up to four times as many, temporaries up to the
// output.
func random(layers int, seed uint64) plan.Chain {
	rng := rand.New(rand.NewPCG(seed, 1))
	c := plan.Chain{Input: 4e6, InputGradient: 4e6}
	for i := range layers {
		f, a := 1000+9000*rng.Float64(), int64(1e6+9e6*rng.Float64())
		tmp := func() int64 { return rng.Int64N(a + 1) }
		l := plan.Layer{Name: fmt.Sprint("l", i), Forward: f, ForwardNoGrad: f, Backward: f * (1.8 + 0.4*rng.Float64()), Output: a, Saved: int64(float64(a) * (1 + 3*rng.Float64())), Gradient: a,
			ForwardTmp: tmp(), BackwardTmp: tmp()}
		l.ForwardNoGradTmp = l.ForwardTmp
		c.Layers = append(c.Layers, l)
	}
	return c
}

func BenchmarkRevolve(b *testing.B) {
	for _, layers := range []int{100, 339} {
		c := random(layers, 1)
		most := mustCheck(b, c, plan.None(layers)).Peak
		for _, saved := range []bool{false, true} {
			b.Run(fmt.Sprintf("%d/saved=%t", layers, saved), func(b *testing.B) {
				for b.Loop() {
					if _, err := plan.NewRevolve(context.Background(), c, most, plan.RevolveConfig{Saved: saved}); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func BenchmarkCheck(b *testing.B) {
	c := random(339, 1)
	all := plan.All(339)
	for b.Loop() {
		mustCheck(b, c, all)
	}
	b.ReportMetric(float64(len(all)), "ops")
}
