package plan

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"penstock.example/internal/solver"
	"penstock.example/remat"
	"penstock.example/schedule"
)

// curve is the plans of one micro-batch on a stage, from the one that recomputes nothing down.
type curve struct {
	points   []solver.MicroBatch
	plans    []MicroBatch // by point
	replayed bool         // the points' bytes are those of a replay
}

// curveKey is the same for stages and micro-batches with the same curve.
func (p Problem) curveKey(c remat.Chain, kind remat.BackwardKind, receives bool, prologue int) string {
	key := binary.AppendVarint([]byte(c.Fingerprint()), int64(kind))
	key = binary.AppendVarint(key, int64(prologue))
	key = strconv.AppendBool(strconv.AppendBool(key, receives), p.sameTimes)
	for _, l := range c.Layers {
		for _, t := range []float64{l.Forward, l.ForwardNoGrad, l.Backward} {
			key = binary.LittleEndian.AppendUint64(key, math.Float64bits(t))
		}
	}
	return string(key)
}

// item is a micro-batch on a stage of a device. The places are those of actions on the worker.
type item struct {
	stage, microBatch int
	curve             *curve
	at                int // the point of the curve that it has
	forward           int
	recompute         int // its backward's first action
	backward          int // its backward's last action
}

// replayCurve gives the points of an item's curve the bytes of a replay, and drops points that others
// beat. These bytes include the micro-batch's on the device's other stages.
func (w *walker) replayCurve(it *item) {
	c := it.curve
	points, plans := c.points[:0], c.plans[:0]
	for k, p := range c.points {
		w.plan.Stages[it.stage].MicroBatches[it.microBatch] = c.plans[k]
		p.Forward, p.Held, p.Backward = w.replay.ownBytes(it)
		if !slices.ContainsFunc(points, func(o solver.MicroBatch) bool { return o.Beats(&p) }) {
			points, plans = append(points, p), append(plans, c.plans[k])
		}
	}
	c.points, c.plans, c.replayed = points, plans, true
	w.plan.Stages[it.stage].MicroBatches[it.microBatch] = c.plans[0]
}

// ownBytes returns the bytes of an item's micro-batch during its forward, before its backward, and
// during its backward.
func (r *replay) ownBytes(it *item) (forward, held, backward int64) {
	live := int64(0)
	bytes := r.bytesOf(it.microBatch)
	for k := range it.backward + 1 {
		if k == it.recompute {
			held = live
		}
		live += bytes.before[k]
		switch peak := live + bytes.peak[k]; {
		case k == it.forward:
			forward = peak
		case k >= it.recompute:
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

// walker goes down from a plan of a device that recomputes nothing to one of the fewest bytes. Each
// step is the one that costs least time for the bytes that it saves where the device holds most.
// Nothing depends on the limit, so a larger limit only stops the walk earlier.
type walker struct {
	plan   *Plan
	items  []item
	replay *replay
	bytes  []int64   // by action: the peak
	weight []float64 // by action: how much its bytes count
	sum    []float64 // by action: of the weights of earlier actions
	peak   int64
	time   float64
	// sharpness is how fast weights fall with the distance from the peak. It grows if no step is left.
	sharpness float64
	states    []state
}

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
	w.plan.Stages[it.stage].MicroBatches[it.microBatch] = it.curve.plans[point]
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
func (w *walker) gain(it *item, now, p solver.MicroBatch) float64 {
	return float64(now.Forward-p.Forward)*w.weight[it.forward] +
		float64(now.Held-p.Held)*(w.sum[it.recompute]-w.sum[it.forward+1]) +
		float64(now.Backward-p.Backward)*(w.sum[it.backward+1]-w.sum[it.recompute])
}

func (w *walker) descend(ctx context.Context, enough int64) error {
	w.save()
	for least := w.peak; least > enough; {
		if err := ctx.Err(); err != nil {
			return err
		}
		i, point := w.cheapest()
		if i < 0 {
			if w.sharpness *= 4; w.sharpness > 1e5 {
				return nil
			}
			w.measure()
			continue
		}
		w.set(i, point)
		if w.peak >= least {
			continue
		}
		w.speedUp(w.peak)
		w.save()
		w.saveFaster(least)
		least = w.peak
	}
	return nil
}

// cheapest returns the item and the point of the next step; -1 if no step saves bytes.
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

// saveFaster saves faster states with peaks between the present one and another. For each rung of a
// fixed ladder of peaks, items of the present state get faster points as far as the rung permits.
func (w *walker) saveFaster(above int64) {
	points := make([]int, len(w.items))
	for i := range w.items {
		points[i] = w.items[i].at
	}
	peak := w.peak
	for rung := math.Ceil(math.Log2(float64(peak)) * rungs); ; rung++ {
		limit := min(int64(math.Exp2(rung/rungs)), above-1)
		if w.speedUp(limit) {
			w.save()
			for i, point := range points {
				if w.items[i].at != point {
					w.set(i, point)
				}
			}
		}
		if limit == above-1 {
			return
		}
	}
}

// rungs is the number of rungs of the ladder from a number of bytes to twice the number.
const rungs = 128

// speedUp gives items faster points if the peak stays within a limit, the last micro-batches first. It
// reports whether it could.
func (w *walker) speedUp(limit int64) (could bool) {
	for i := len(w.items) - 1; i >= 0; i-- {
		it := &w.items[i]
		now := it.curve.points[it.at]
		if now.Time == 0 {
			continue
		}
		free := func(from, to int) int64 {
			if from >= to {
				return math.MaxInt64
			}
			return limit - slices.Max(w.bytes[from:to])
		}
		forward, held, backward := free(it.forward, it.forward+1), free(it.forward+1, it.recompute),
			free(it.recompute, it.backward+1)
		tries := 3
		for k, p := range it.curve.points {
			if p.Time >= now.Time {
				break
			}
			if p.Forward-now.Forward > forward || p.Held-now.Held > held ||
				p.Backward-now.Backward > backward {
				continue
			}
			was := it.at
			if w.set(i, k); w.peak <= limit {
				could = true
				break
			}
			if w.set(i, was); tries == 1 {
				break
			}
			tries--
		}
	}
	return could
}

// best returns the plan with the shortest step over several programs. If no program has a plan, short
// is the shortage of the last one. With sameTimes the shortage does not depend on measured times.
func (p Problem) best(ctx context.Context, programs []*schedule.Program, sameTimes bool) (best *Plan,
	short *MemoryError, err error) {
	if p.sameTimes = sameTimes; p.curves == nil {
		p.curves = map[string]*curve{}
	}
	var shortest time.Duration
	for _, program := range programs {
		plan, step, shortages, err := p.plan(ctx, program)
		switch {
		case err != nil:
			return nil, nil, err
		case shortages != nil:
			short = shortages
		case best == nil || step < shortest:
			best, shortest = plan, step
		}
		if best != nil && p.First {
			break
		}
	}
	return best, short, nil
}

// plan plans a step in the order of a program that recomputes all that may be recomputed.
func (p Problem) plan(ctx context.Context, program *schedule.Program) (*Plan, time.Duration, *MemoryError,
	error) {
	out, walks, err := p.walks(ctx, program)
	if err != nil {
		return nil, 0, nil, err
	}
	short := &MemoryError{}
	for at, w := range walks {
		d := &out.Devices[at]
		if w == nil || d.Limit == 0 {
			continue
		}
		if least := w.states[len(w.states)-1].peak + d.Base; least > d.Limit {
			short.Stages = append(short.Stages, p.shortage(at, least))
		}
	}
	if len(short.Stages) > 0 {
		return nil, 0, short, nil
	}
	// All devices go down together, next the device whose peak is the greatest part of its limit.
	simulation, err := schedule.NewSimulation(out.Program)
	if err != nil {
		return nil, 0, nil, fmt.Errorf("plan: %w", err)
	}
	durations, _ := out.durations()
	states, best, shortest := make([]int, len(walks)), []int(nil), time.Duration(0)
	for {
		next, most, fullest := -1, 0.0, 0.0
		for i, w := range walks {
			if d := &out.Devices[i]; w != nil && d.Limit > 0 {
				share := float64(w.states[states[i]].peak+d.Base) / float64(d.Limit)
				if fullest = max(fullest, share); share > most && states[i]+1 < len(w.states) {
					next, most = i, share
				}
			}
		}
		if fullest <= 1 {
			if took := simulation.Run(durations, p.Links, nil); best == nil || took < shortest {
				best, shortest = slices.Clone(states), took
			}
			if p.First || slices.Max(states) == 0 {
				break
			}
		}
		if next < 0 {
			break
		}
		states[next]++
		walks[next].apply(states[next])
	}
	for at, w := range walks {
		if w != nil {
			w.apply(best[at])
			out.Devices[at].Time = out.deviceTime(at)
		}
	}
	out.Program = program.Without(func(a schedule.Action) bool {
		return !out.recomputes(a.Stage, a.MicroBatch)
	})
	if err := schedule.Check(out.Program); err != nil {
		return nil, 0, nil, fmt.Errorf("plan: %w", err)
	}
	out.predictPeaks()
	return out, shortest, nil, nil
}

// walks walks down on each device in the order of a program. The plan that it returns recomputes
// nothing.
func (p Problem) walks(ctx context.Context, program *schedule.Program) (*Plan, []*walker, error) {
	out := &Plan{Program: program, skips: withGradientOffsets(p.Skips), ties: p.Ties}
	for _, d := range p.Devices {
		out.Devices = append(out.Devices, DevicePlan{Name: d.Name})
	}
	for _, s := range p.Stages {
		out.Stages = append(out.Stages, p.stage(s))
	}
	graph := program.Graph()
	latest := graph.LatestReceives()
	walks := make([]*walker, len(p.Devices))
	for at := range p.Devices {
		w, err := p.walk(ctx, out, at, graph, latest)
		if err != nil {
			return nil, nil, fmt.Errorf("plan: device %s: %w", p.Devices[at].Name, err)
		}
		if walks[at] = w; w == nil {
			continue
		}
		w.apply(0)
		d := &out.Devices[at]
		d.Limit, d.Base, d.Time = p.Devices[at].Limit, p.base(at), out.deviceTime(at)
		d.Once = d.Time
		for _, s := range p.Stages {
			if s.Device == at {
				d.Spread = max(d.Spread, s.Costs.Spread)
			}
		}
	}
	return out, walks, nil
}

// deviceTime is the predicted microseconds of a device's actions.
func (p *Plan) deviceTime(device int) (t float64) {
	for _, s := range p.Stages {
		if s.Device == device {
			for _, m := range s.MicroBatches {
				t += m.Forward + m.Recompute + m.Backward
			}
		}
	}
	return t
}

// apply gives the items the points of a state.
func (w *walker) apply(k int) {
	for i, point := range w.states[k].points {
		it := &w.items[i]
		w.plan.Stages[it.stage].MicroBatches[it.microBatch] = it.curve.plans[point]
	}
}

// walk returns the states of a device in the order of a program, by ascending time and descending
// peak; nil if its memory is not planned.
func (p Problem) walk(ctx context.Context, out *Plan, at int, graph *schedule.Graph,
	latest []int) (*walker, error) {
	w := &walker{plan: out, sharpness: 60}
	limit := p.Devices[at].Limit
	if err := p.items(ctx, w, at, graph, true); err != nil || w.items == nil {
		return nil, err
	}
	w.replay = w.plan.newReplay(graph, latest, at)
	n := len(w.replay.all.peak)
	w.bytes, w.weight, w.sum = make([]int64, n), make([]float64, n), make([]float64, n+1)
	w.measure()
	if w.save(); limit == 0 || w.peak+p.base(at) <= limit {
		return w, nil
	}
	if err := p.items(ctx, w, at, graph, false); err != nil {
		return nil, err
	}
	for i := range w.items {
		if it := &w.items[i]; !it.curve.replayed {
			w.replayCurve(it)
		}
	}
	enough := int64(0)
	if p.First {
		enough = limit - p.base(at)
	}
	if err := w.descend(ctx, enough); err != nil {
		return nil, err
	}
	slices.SortStableFunc(w.states, func(a, b state) int {
		return cmp.Or(cmp.Compare(a.time, b.time), cmp.Compare(a.peak, b.peak))
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

// items gives a walker the micro-batches of a device's stages with their curves; plain ones have only
// the point that recomputes nothing.
func (p Problem) items(ctx context.Context, w *walker, at int, graph *schedule.Graph, plain bool) error {
	w.items = nil
	place := func(kind schedule.Kind, stage, microBatch int) int {
		id, ok := graph.IndexOf(schedule.Action{Kind: kind, Stage: stage, MicroBatch: microBatch})
		if !ok {
			return -1
		}
		return id - graph.First[at]
	}
	most := 96 // points of a front
	if p.MicroBatches == 1 && len(p.Stages) == 1 {
		most = 0 // all, so that the plan is the fastest
	}
	for i, s := range p.Stages {
		if s.Device != at || s.Policy != Optimal {
			continue
		}
		local := map[remat.BackwardKind]*curve{}
		for m := range p.MicroBatches {
			it := item{stage: i, microBatch: m, forward: place(schedule.Forward, i, m),
				recompute: place(schedule.Recompute, i, m)}
			kind := w.plan.backwardKind(graph, i, m)
			it.backward = max(place(schedule.BackwardInput, i, m), place(schedule.Backward, i, m))
			if it.recompute < 0 {
				it.recompute = it.backward
			}
			costs, which := &s.Costs, kind
			if s.Fewer != nil && p.Larger > 0 && m >= p.Larger {
				costs, which = s.Fewer, -1-kind
			}
			if local[which] == nil {
				var err error
				if local[which], err = p.curve(ctx, costs, kind, i < len(p.Stages)-1, s.Memory.BatchInput,
					most, plain); err != nil {
					return err
				}
			}
			it.curve = local[which]
			w.items = append(w.items, it)
			w.plan.Stages[i].MicroBatches[m] = it.curve.plans[0]
		}
	}
	return nil
}

// curve returns the curve of the micro-batches of a stage with a kind of backwards.
func (p Problem) curve(ctx context.Context, costs *StageCosts, kind remat.BackwardKind, receives,
	batchInput bool, most int, plain bool) (*curve, error) {
	c := costs.Chain(kind)
	if batchInput && costs.Prologue == 0 {
		c = c.WithoutInput()
	}
	planned := c
	if p.sameTimes {
		planned.Layers = slices.Clone(c.Layers)
		for i := range planned.Layers {
			l := &planned.Layers[i]
			l.Forward, l.ForwardNoGrad, l.Backward = 1, 1, 1
		}
	}
	key := p.curveKey(c, kind, receives, costs.Prologue)
	if known := p.curves[key]; known != nil && !plain {
		return known, nil
	}
	out := &curve{points: make([]solver.MicroBatch, 1)} // of a stage without backward
	if len(c.Layers) > 0 {
		stage, err := solver.NewStage(ctx, planned, receives, plain)
		if err != nil {
			return nil, err
		}
		out.points = stage.Curve(most)
	}
	for _, point := range out.points {
		out.plans = append(out.plans, timed(point.Ops, c, costs.Prologue))
	}
	if !plain {
		p.curves[key] = out
	}
	return out, nil
}
