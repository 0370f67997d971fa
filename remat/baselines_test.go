package remat_test

import (
	"strings"
	"testing"

	"penstock.example/remat"
)

func TestBaselines(t *testing.T) {
	sequential := func(layers, segments int) []remat.Op {
		list, err := remat.Sequential(layers, segments)
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	for _, test := range []struct {
		reason string
		got    []remat.Op
		want   string
	}{
		{"save everything", remat.None(3), "S0 S1 S2 L B2 B1 B0"},
		{"of one layer", remat.None(1), "S0 L B0"},
		{"keep the input", remat.All(3), "K0 F1 F2 L K0 F1 S2 B2 K0 S1 B1 S0 B0"},
		{"keep the input, one layer", remat.All(1), "K0 L S0 B0"},
		{"one segment, which is the last", sequential(3, 1), "S0 S1 S2 L B2 B1 B0"},
		{"two segments of 2 and 3 layers", sequential(5, 2), "K0 F1 S2 S3 S4 L B4 B3 B2 S0 S1 B1 B0"},
		{"three segments of 2, 2 and 3", sequential(7, 3), "K0 F1 K2 F3 S4 S5 S6 L B6 B5 B4 S2 S3 B3 B2 S0 S1 B1 B0"},
		{"a layer a segment", sequential(3, 3), "K0 K1 S2 L B2 S1 B1 S0 B0"},
	} {
		if got := remat.FormatOps(test.got); got != test.want {
			t.Errorf("%s: got %s, want %s", test.reason, got, test.want)
		}
		layers := 0
		for _, o := range test.got {
			layers = max(layers, o.Layer+1)
		}
		if _, err := remat.Check(plain(layers, 2), test.got); err != nil {
			t.Errorf("%s: %v", test.reason, err)
		}
	}
	for _, segments := range []int{-1, 0, 4} {
		if list, err := remat.Sequential(3, segments); err == nil || !strings.Contains(err.Error(), "want 1 to 3") {
			t.Errorf("%d segments: %v, error %v", segments, list, err)
		}
	}
}

// TestBaselineCosts: closed forms on equal layers.
func TestBaselineCosts(t *testing.T) {
	for layers := 1; layers <= 40; layers++ {
		c := plain(layers, 3)
		check := func(name string, list []remat.Op, peak int64, again int) {
			report, err := remat.Check(c, list)
			if err != nil || report.Peak != peak || report.Recomputed != again || report.Extra != float64(again) {
				t.Errorf("%s of %d layers: peak %d, %d again, %v; want %d and %d", name, layers, report.Peak, report.Recomputed, err, peak, again)
			}
		}
		n := int64(layers)
		check("none", remat.None(layers), 1+3*n+2, 0) // x0, all X, and at the last layer's backward y(n) and y(n-1)
		alone := int64(0)
		if layers > 1 {
			alone = 1 // x(n-1), which in a chain of one layer is x0
		}
		check("all", remat.All(layers), 1+alone+3+2, layers*(layers+1)/2)
		runs := mustCheck(t, c, remat.All(layers)).Layers
		for i, r := range runs {
			// rotor with its least memory counts the batches of its batch norms so: on 11 layers 12 in the first and 2 in the last.
			if r.NoGrad+r.Grad != layers+1-i {
				t.Errorf("all of %d layers: layer %d runs %d times, want %d", layers, i, r.NoGrad+r.Grad, layers+1-i)
			}
		}
		for segments := 1; segments <= layers; segments++ {
			list, err := remat.Sequential(layers, segments)
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

func mustCheck(t interface{ Fatal(...any) }, c remat.Chain, list []remat.Op) remat.Report {
	report, err := remat.Check(c, list)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// TestRevolveComputesLeastAgain compares with the recurrence over all places of the next checkpoint, and counts the inputs that are there at a time.
func TestRevolveComputesLeastAgain(t *testing.T) {
	const most = 40
	var fewest [most + 1][most + 1]int // by layers and checkpoints
	for layers := 1; layers <= most; layers++ {
		for checkpoints := 1; checkpoints <= layers; checkpoints++ {
			best := layers * (layers - 1) / 2
			for j := 1; j < layers && checkpoints > 1; j++ {
				best = min(best, j+fewest[layers-j][min(checkpoints-1, layers-j)]+fewest[j][min(checkpoints, j)])
			}
			fewest[layers][checkpoints] = best
			ops, err := remat.Revolve(layers, checkpoints)
			if err != nil {
				t.Fatal(err)
			}
			if report := mustCheck(t, plain(layers, 2), ops); report.Recomputed != best {
				t.Fatalf("%d layers, %d checkpoints: %d forwards again, want %d: %s", layers, checkpoints, report.Recomputed, best, remat.FormatOps(ops))
			}
			kept, atOnce := map[int]bool{}, 0
			for _, o := range ops {
				switch o.Kind {
				case remat.ForwardKeep:
					kept[o.Layer] = true
				case remat.Backward:
					delete(kept, o.Layer)
				}
				atOnce = max(atOnce, len(kept))
			}
			if atOnce > checkpoints {
				t.Fatalf("%d layers, %d checkpoints: %d at once: %s", layers, checkpoints, atOnce, remat.FormatOps(ops))
			}
		}
	}
	for _, checkpoints := range []int{-1, 0, 4} {
		if _, err := remat.Revolve(3, checkpoints); err == nil || !strings.Contains(err.Error(), "want 1 to 3") {
			t.Errorf("%d checkpoints: error %v", checkpoints, err)
		}
	}
}
