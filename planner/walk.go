package planner

import (
	"context"
	"math"
	"slices"

	"penstock.example/remat"
	"penstock.example/remat/solver"
	"penstock.example/schedule"
)

// curve is the plans of one micro-batch on a stage, from everything kept down.
type curve struct {
	stage    *solver.StageSolver
	chain    remat.Chain
	prologue int
	points   []solver.StagePoint
	plans    []*MicroBatch // by point; nil where it was not asked for
	measured bool          // the points have the bytes of a replay
}

func newCurve(ctx context.Context, c remat.Chain, receives bool, prologue, most int) (*curve, error) {
	out := &curve{chain: c, prologue: prologue}
	if len(c.Layers) == 0 {
		out.points, out.plans = []solver.StagePoint{{Ops: []remat.Op{{Kind: remat.LossStep}}}}, []*MicroBatch{nil}
		return out, nil
	}
	var err error
	if out.stage, err = solver.NewStageSolver(ctx, c, receives); err != nil {
		return nil, err
	}
	out.points = out.stage.Curve(most)
	out.plans = make([]*MicroBatch, len(out.points))
	return out, nil
}

// plan returns the operations and times of a point.
func (c *curve) plan(k int) MicroBatch {
	if c.plans[k] == nil {
		m := timed(c.points[k].Ops, c.chain, c.prologue)
		c.plans[k] = &m
	}
	return *c.plans[k]
}

// item is a micro-batch on a stage of a device. The places are those of actions on the worker.
type item struct {
	stage, microBatch int
	curve             *curve
	at                int // the point of the curve that it has
	forward           int
	again, backward   int // the first and the last action of its backward
}

// measureCurve replays an item with each point of its curve, and drops points that others beat. The
// bytes of all are too high by the same number.
func (w *walker) measureCurve(it *item) {
	c := it.curve
	c.measured = true
	list := c.points[:0]
	for k, p := range c.points {
		w.out.Stages[it.stage].MicroBatches[it.microBatch] = c.plan(k)
		p.Forward, p.Held, p.Backward = w.replay.own(it)
		if !slices.ContainsFunc(list, func(o solver.StagePoint) bool { return o.Beats(&p) }) {
			list = append(list, p)
		}
	}
	c.points, c.plans = list, make([]*MicroBatch, len(list))
	w.out.Stages[it.stage].MicroBatches[it.microBatch] = c.plan(0)
}

// own returns the bytes of an item's micro-batch during its forward, before its backward, and
// during that.
func (r *replay) own(it *item) (forward, held, backward int64) {
	live := int64(0)
	bytes := r.bytesOf(it.microBatch)
	for k := range it.backward + 1 {
		if k == it.again {
			held = live
		}
		live += bytes.before[k]
		switch peak := live + bytes.peak[k]; {
		case k == it.forward:
			forward = peak
		case k >= it.again:
			backward = max(backward, peak)
		}
		live += bytes.after[k]
	}
	return forward, held, backward
}

// state is a plan of a device: a point of the curve of each item.
type state struct {
	points []int
	peak   int64 // bytes, without the base
	time   float64
}

// walker goes down from a plan that recomputes nothing to one of the fewest bytes. It does not know
// the limit: at each state it takes the step that costs least time for the bytes that it saves
// where the device holds most.
type walker struct {
	out       *Plan
	items     []item
	replay    *replay
	bytes     []int64   // by action: the peak
	weight    []float64 // by action, and sums of those before: how much bytes count there
	sum       []float64
	peak      int64
	time      float64
	states    []state
	sharpness float64
}

// sharpness is how fast the weight of bytes falls with the distance from the peak, as a part of it.
const sharpness, mostSharp = 60, 1e5

func (w *walker) measure() {
	k := 0
	w.peak = w.replay.peak(func(_ schedule.Action, peak, _ int64) {
		w.bytes[k] = peak
		k++
	})
	for k, b := range w.bytes {
		w.weight[k] = math.Exp(w.sharpness * float64(b-w.peak) / float64(max(w.peak, 1)))
		w.sum[k+1] = w.sum[k] + w.weight[k]
	}
}

func (w *walker) set(i, point int) {
	it := &w.items[i]
	w.time += it.curve.points[point].Time - it.curve.points[it.at].Time
	it.at = point
	w.out.Stages[it.stage].MicroBatches[it.microBatch] = it.curve.plan(point)
	w.replay.update(it.microBatch)
	w.measure()
}

func (w *walker) save() {
	s := state{peak: w.peak, time: w.time}
	for i := range w.items {
		s.points = append(s.points, w.items[i].at)
	}
	w.states = append(w.states, s)
}

// gain is the weighted bytes that an item saves at another point.
func (w *walker) gain(it *item, now, p solver.StagePoint) float64 {
	return float64(now.Forward-p.Forward)*w.weight[it.forward] +
		float64(now.Held-p.Held)*(w.sum[it.again]-w.sum[it.forward+1]) +
		float64(now.Backward-p.Backward)*(w.sum[it.backward+1]-w.sum[it.again])
}

func (w *walker) descend(ctx context.Context, enough int64) error {
	w.save()
	for least := w.peak; least > enough; {
		if err := ctx.Err(); err != nil {
			return err
		}
		i, point := w.cheapest()
		if i < 0 {
			if w.sharpness *= 4; w.sharpness > mostSharp {
				return nil
			}
			w.measure()
			continue
		}
		w.set(i, point)
		if w.peak >= least {
			continue
		}
		w.raise(w.peak, false)
		w.save()
		w.relieve(least)
		least = w.peak
	}
	return nil
}

// cheapest returns the item and the point of the step that costs least time for the bytes that it
// saves; -1 if no step saves any.
func (w *walker) cheapest() (best, to int) {
	best = -1
	least := math.Inf(1)
	for i := range w.items {
		it := &w.items[i]
		now := it.curve.points[it.at]
		for k, p := range it.curve.points {
			if p.Time <= now.Time {
				continue
			}
			if g := w.gain(it, now, p); g > 1e-9 && (p.Time-now.Time)/g < least {
				best, to, least = i, k, (p.Time-now.Time)/g
			}
		}
	}
	return best, to
}

// relieve saves states with peaks between that of the present state and another: at each rung of a
// fixed ladder the present one with faster points for all items that have room.
func (w *walker) relieve(above int64) {
	points := make([]int, len(w.items))
	for i := range w.items {
		points[i] = w.items[i].at
	}
	peak := w.peak
	for rung := math.Ceil(math.Log2(float64(peak)) * rungs); ; rung++ {
		limit := int64(math.Exp2(rung / rungs))
		if limit >= above {
			return
		}
		for _, down := range []bool{false, true} {
			if w.raise(limit, down) {
				w.save()
				for i, point := range points {
					if w.items[i].at != point {
						w.set(i, point)
					}
				}
			}
		}
	}
}

// rungs is how many rungs the ladder has from a number of bytes to twice as many.
const rungs = 128

// raise gives items faster points where the peak stays within a limit. It reports whether it could.
func (w *walker) raise(limit int64, down bool) (raised bool) {
	for n := range w.items {
		i := n
		if down {
			i = len(w.items) - 1 - n
		}
		it := &w.items[i]
		now := it.curve.points[it.at]
		if now.Time == 0 {
			continue
		}
		room := func(from, to int) int64 {
			if from >= to {
				return math.MaxInt64
			}
			return limit - slices.Max(w.bytes[from:to])
		}
		forward, waits, works := room(it.forward, it.forward+1), room(it.forward+1, it.again), room(it.again, it.backward+1)
		tries := 3
		for k, p := range it.curve.points {
			if p.Time >= now.Time {
				break
			}
			if p.Forward-now.Forward > forward || p.Held-now.Held > waits || p.Backward-now.Backward > works {
				continue
			}
			was := it.at
			if w.set(i, k); w.peak <= limit {
				raised = true
				break
			}
			if w.set(i, was); tries == 1 {
				break
			}
			tries--
		}
	}
	return raised
}

// walk returns the states of a device, in the order of a program, by ascending time and descending
// peak.
func (p Problem) walk(ctx context.Context, out *Plan, at int, in orderedProgram, curves map[curveKey]*curve, enough int64) (*walker, error) {
	w := &walker{out: out, sharpness: sharpness}
	first := in.graph.First[at]
	place := func(kind schedule.Kind, stage, microBatch int) int {
		id, ok := in.graph.IndexOf(schedule.Action{Kind: kind, Stage: stage, MicroBatch: microBatch})
		if !ok {
			return -1
		}
		return id - first
	}
	n := 0
	for _, s := range p.Stages {
		if s.Device == at {
			n++
		}
	}
	for i, s := range p.Stages {
		if s.Device != at || s.Policy != Optimal {
			continue
		}
		a, b, c := p.chains(i, in.Program)
		for m := range p.MicroBatches {
			it := item{stage: i, microBatch: m, forward: place(schedule.Forward, i, m)}
			chain, class := b, 1
			switch {
			case m == 0:
				chain, class = a, 0
			case p.Larger > 0 && m >= p.Larger:
				chain, class = c, 2
			}
			it.backward = max(place(schedule.Backward, i, m), place(schedule.BackwardInput, i, m))
			if it.again = place(schedule.Recompute, i, m); it.again < 0 {
				it.again = it.backward
			}
			key := curveKey{i, class}
			if curves[key] == nil {
				most := 96
				if p.MicroBatches*n == 1 {
					most = 0
				}
				var err error
				if curves[key], err = newCurve(ctx, chain, i < len(p.Stages)-1, s.Costs.Prologue, most); err != nil {
					return nil, err
				}
			}
			it.curve = curves[key]
			w.items = append(w.items, it)
			out.Stages[i].MicroBatches[m] = it.curve.plan(0)
		}
	}
	w.replay = out.newReplay(in.graph, in.latest, at)
	for i := range w.items {
		if it := &w.items[i]; !it.curve.measured {
			w.measureCurve(it)
		}
	}
	actions := len(w.replay.all.peak)
	w.bytes, w.weight, w.sum = make([]int64, actions), make([]float64, actions), make([]float64, actions+1)
	w.measure()
	if err := w.descend(ctx, enough); err != nil {
		return nil, err
	}
	slices.SortStableFunc(w.states, func(a, b state) int {
		switch {
		case a.time < b.time:
			return -1
		case a.time > b.time:
			return 1
		}
		return int(min(max(a.peak-b.peak, -1), 1))
	})
	list := w.states[:0]
	for _, s := range w.states {
		if len(list) == 0 || s.peak < list[len(list)-1].peak {
			list = append(list, s)
		}
	}
	w.states = list
	return w, nil
}

type curveKey struct{ stage, class int }
