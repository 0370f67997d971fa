package remat

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// None returns the plan that saves everything and recomputes nothing, as plain training does.
func None(layers int) []Op {
	var w sequence
	w.saveAndReturn(0, layers, true)
	return w
}

// All returns the plan that keeps only the input, and recomputes everything before a layer for its
// backward: rotor's recompute_all. It comes close to the least memory, unless some layers take less
// when everything is kept.
func All(layers int) []Op {
	var w sequence
	w.keep(0, layers)
	w.add(LossStep, 0)
	for i := layers - 1; i >= 0; i-- {
		w.keep(0, i)
		w.saveAndReturn(i, i+1, false)
	}
	return w
}

// Sequential returns the plan of PyTorch's checkpoint_sequential. Each segment has layers/segments
// layers, and the last one the rest, too. A segment keeps its input and is recomputed as a whole for
// its backward. The last segment saves everything at once.
func Sequential(layers, segments int) ([]Op, error) {
	if segments < 1 || segments > layers {
		return nil, fmt.Errorf("remat: %d segments of %d layers; want 1 to %d", segments, layers, layers)
	}
	var w sequence
	size := layers / segments
	last := size * (segments - 1) // first layer of the last
	for first := 0; first < last; first += size {
		w.keep(first, first+size)
	}
	w.saveAndReturn(last, layers, true)
	for first := last - size; first >= 0; first -= size {
		w.saveAndReturn(first, first+size, false)
	}
	return w, nil
}

// sequence is a plan under construction. Its methods take layers from first to end-1.
type sequence []Op

func (w *sequence) add(k Kind, layer int) { *w = append(*w, Op{Kind: k, Layer: layer}) }

// keep runs layers without gradients, and keeps the input of the first.
func (w *sequence) keep(first, end int) {
	for i := first; i < end; i++ {
		if i == first {
			w.add(ForwardKeep, i)
		} else {
			w.add(Forward, i)
		}
	}
}

// saveAndReturn runs layers forward with gradients, then the loss if that follows, and backward.
func (w *sequence) saveAndReturn(first, end int, loss bool) {
	for i := first; i < end; i++ {
		w.add(ForwardSave, i)
	}
	if loss {
		w.add(LossStep, 0)
	}
	for i := end - 1; i >= first; i-- {
		w.add(Backward, i)
	}
}

// Baseline is a plan of one of the usual strategies.
type Baseline struct {
	Strategy string  `json:"strategy"`        // "none", "all" or "sequential"
	Segments int     `json:"parts,omitempty"` // of sequential, else 0
	Ops      []Op    `json:"-"`
	Peak     int64   `json:"peak_bytes"`
	Time     float64 `json:"time_us"`
}

// Baselines returns the plans of the usual strategies, by ascending peak: None, All, and Sequential with
// 2 to 2*sqrt(layers) segments. It leaves out a plan if another of the same strategy beats it in time or
// peak, and is not worse in the other. Sequential with sqrt(layers) segments is never left out. The
// error is a [*ChainError].
func Baselines(c Chain) ([]Baseline, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	n := len(c.Layers)
	root := math.Sqrt(float64(n))
	plans := [][]Baseline{{{Strategy: "none", Ops: None(n)}}, {{Strategy: "all", Ops: All(n)}}, nil}
	for k := 2; k <= min(n, int(2*root)); k++ {
		segments, err := Sequential(n, k)
		if err != nil {
			return nil, err
		}
		plans[2] = append(plans[2], Baseline{Strategy: "sequential", Segments: k, Ops: segments})
	}
	var out []Baseline
	for _, family := range plans {
		for i := range family {
			report, err := Check(c, family[i].Ops)
			if err != nil {
				return nil, fmt.Errorf("%w (of the strategy %s)", err, family[i].Strategy)
			}
			family[i].Peak, family[i].Time = report.Peak, report.Time
		}
		for i, p := range family {
			beats := func(q Baseline) bool {
				return q.Peak <= p.Peak && q.Time <= p.Time && (q.Peak < p.Peak || q.Time < p.Time)
			}
			equal := func(q Baseline) bool { return q.Peak == p.Peak && q.Time == p.Time }
			if p.Segments > 0 && p.Segments == int(math.Round(root)) ||
				!slices.ContainsFunc(family, beats) && !slices.ContainsFunc(family[:i], equal) {
				out = append(out, p)
			}
		}
	}
	slices.SortStableFunc(out, func(a, b Baseline) int {
		return cmp.Or(cmp.Compare(a.Peak, b.Peak), cmp.Compare(a.Time, b.Time))
	})
	return out, nil
}
