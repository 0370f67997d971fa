package remat_test

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	_ "penstock.example/internal/draws" // sets the number of draws
	"penstock.example/remat"
)

// simulator is the model of the package's doc written a second time, slowly: the set of things that are
// there by name ("x1", "X2", "y3", "w0"), and bytes by looking at each thing, part by part.
type simulator struct {
	c      remat.Chain
	things map[string]bool
	lossed bool
}

func newSimulator(c remat.Chain) *simulator {
	return &simulator{c: c, things: map[string]bool{"x0": true}}
}

func (w *simulator) has(kind string, i int) bool { return w.things[fmt.Sprint(kind, i)] }

// sees says whether x(i) is there in any way.
func (w *simulator) sees(i int) bool { return w.has("x", i) || w.has("X", i) }

// bytes is the sum over memory that anything is in.
func (w *simulator) bytes(things map[string]bool) int64 {
	has := func(kind string, i int) bool { return things[fmt.Sprint(kind, i)] }
	var sum int64
	for i := 0; i <= len(w.c.Layers); i++ {
		output, gradient := w.c.Input, w.c.InputGradient
		if i > 0 {
			output, gradient = w.c.Layers[i-1].Output, w.c.Layers[i-1].Gradient
		}
		for _, k := range w.c.Carries {
			if k.From == i-1 {
				output -= k.Bytes
			}
		}
		for _, k := range w.c.GradientCarries {
			if k.To == i {
				gradient -= k.Bytes
			}
		}
		if has("x", i) || has("X", i) {
			sum += output
		}
		if has("X", i) {
			sum += w.c.Layers[i-1].Saved - w.c.Layers[i-1].Output
		}
		if has("y", i) {
			sum += gradient
		}
		if has("w", i) {
			sum += w.c.Layers[i].WeightGradient
		}
	}
	for _, k := range w.c.Carries {
		for i := k.From + 1; i <= k.To; i++ {
			if has("x", i) || has("X", i) {
				sum += k.Bytes
				break
			}
		}
	}
	for _, k := range w.c.GradientCarries {
		for i := k.To; i > k.From; i-- {
			if has("y", i) {
				sum += k.Bytes
				break
			}
		}
	}
	return sum
}

// do carries out an operation if it is allowed, and returns the most bytes during it and its time.
func (w *simulator) do(o remat.Op) (peak int64, time float64, ok bool) {
	n, i := len(w.c.Layers), o.Layer
	if w.has("w", 0) { // backward 0 has run
		return 0, 0, false
	}
	var need, makes, drops []string
	var tmp int64
	name := func(kind string, i int) string { return fmt.Sprint(kind, i) }
	if o.Kind != remat.LossStep && i >= n {
		return 0, 0, false
	}
	switch o.Kind {
	case remat.Forward, remat.ForwardKeep, remat.ForwardSave:
		if !w.sees(i) || w.sees(i+1) {
			return 0, 0, false
		}
		l := w.c.Layers[i]
		makes, tmp, time = []string{name("x", i+1)}, l.ForwardNoGradTmp, l.ForwardNoGrad
		if o.Kind == remat.ForwardSave {
			makes, tmp, time = []string{name("X", i+1)}, l.ForwardTmp, l.Forward
		}
		if o.Kind == remat.Forward {
			drops = []string{name("x", i)}
		}
	case remat.LossStep:
		if !w.sees(n) || w.lossed {
			return 0, 0, false
		}
		makes, drops, tmp, time = []string{name("y", n)}, []string{name("x", n)}, w.c.Loss.Tmp,
			w.c.Loss.Backward
		w.lossed = true
	case remat.Backward:
		l := w.c.Layers[i]
		if !w.sees(i) {
			return 0, 0, false
		}
		need = []string{name("X", i+1), name("y", i+1)}
		makes, tmp, time = []string{name("y", i), name("w", i)}, l.BackwardTmp-l.BackwardEarly, l.Backward
		drops = []string{name("X", i+1), name("y", i+1), name("x", i)}
	}
	for _, thing := range need {
		if !w.things[thing] {
			return 0, 0, false
		}
	}
	for _, thing := range makes {
		w.things[thing] = true
	}
	peak = w.bytes(w.things) + tmp
	for _, thing := range drops {
		delete(w.things, thing)
	}
	return peak, time, true
}

func (w *simulator) clone() *simulator { return &simulator{w.c, maps.Clone(w.things), w.lossed} }

// every is each operation on so many layers.
func every(layers int) []remat.Op {
	list := []remat.Op{{Kind: remat.LossStep}}
	for i := range layers {
		for _, k := range []remat.Kind{remat.Forward, remat.ForwardKeep, remat.ForwardSave, remat.Backward} {
			list = append(list, remat.Op{Kind: k, Layer: i})
		}
	}
	return list
}

// compare checks operations of which all but the last are allowed, against what the simulator says of
// them.
func compare(t interface{ Fatalf(string, ...any) }, c remat.Chain, ops []remat.Op, allowed, complete bool,
	peak int64,
	time float64) {
	report, err := remat.Check(c, ops)
	wants := fmt.Sprintf("remat: operation %d, ", len(ops)-1)
	if allowed {
		wants = fmt.Sprintf("remat: the plan ends after %d operations: ", len(ops))
	}
	switch {
	case allowed && complete:
		if err != nil || report.Peak != peak || math.Abs(report.Time-time) > 1e-9*time {
			t.Fatalf("%v: %+v, %v; want peak %d, time %v", ops, report, err, peak, time)
		}
	case err == nil || !strings.HasPrefix(err.Error(), wants):
		t.Fatalf("%v: %v; allowed %t, complete %t", ops, err, allowed, complete)
	}
}

// TestCheckAgreesOnAnyChain takes random ways through random chains, such as wander off and such as get
// to an end.
func TestCheckAgreesOnAnyChain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := chains(5).Draw(t, "chain")
		w := newSimulator(c)
		var ops []remat.Op
		var peak int64
		var time float64
		for len(ops) < 40 && !w.has("w", 0) {
			var can []remat.Op
			for _, o := range every(len(c.Layers)) {
				if _, _, ok := w.clone().do(o); ok {
					can = append(can, o)
				} else {
					compare(t, c, append(slices.Clone(ops), o), false, false, 0, 0)
				}
			}
			if len(can) == 0 {
				break
			}
			if i := slices.IndexFunc(can,
				func(o remat.Op) bool { return o.Kind == remat.Backward }); i >= 0 &&
				rapid.Bool().Draw(t, "back") {
				can = can[i : i+1]
			}
			o := rapid.SampledFrom(can).Draw(t, "op")
			ops = append(ops, o)
			most, us, _ := w.do(o)
			peak, time = max(peak, most), time+us
			compare(t, c, ops, true, w.has("w", 0), peak, time)
		}
	})
}
