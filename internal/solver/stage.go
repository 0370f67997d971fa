package solver

import (
	"cmp"
	"context"
	"math"
	"slices"

	"penstock.example/remat"
)

// Stage finds plans of a micro-batch on a stage of a pipeline. A micro-batch runs its forward, waits
// while others run, and then runs its backward, which begins with the loss.
type Stage struct {
	t     *terms
	b     *bounds
	steps *steps // nil if they are too many
	grid  *grid  // nil if there are steps
}

// MicroBatch is a plan of a micro-batch on a stage. Bytes are its own, its input included.
type MicroBatch struct {
	Ops      []remat.Op
	Forward  int64   // the peak of the forward
	Held     int64   // while it waits
	Backward int64   // the peak of the backward
	Time     float64 // microseconds of recomputation
}

// Beats reports whether p is at most o in time and in each number of bytes.
func (p *MicroBatch) Beats(o *MicroBatch) bool {
	return p.Time <= o.Time && p.Held <= o.Held && p.Backward <= o.Backward && p.Forward <= o.Forward
}

func (p *path) point() MicroBatch { return MicroBatch{p.ops, p.early, p.held, p.late, p.extra} }

// NewStage prepares a chain, which must make sense. receives says that a later stage sends the output's
// gradient, which arrives after the recomputation before the first backward. Otherwise the loss is on
// the stage. With plain nothing is recomputed. It returns ctx.Err() when ctx ends first.
func NewStage(ctx context.Context, c remat.Chain, receives, plain bool) (*Stage, error) {
	s := &Stage{t: newTerms(c, receives)}
	if plain {
		return s, nil
	}
	return s, s.solve(ctx, stageSteps, max(min(stageCells/(s.t.n*s.t.n), 2000), 300))
}

// solve makes steps, or a grid if they are too many.
func (s *Stage) solve(ctx context.Context, visits int64, slots int) (err error) {
	s.b = newBounds(s.t)
	if s.steps, err = newSteps(ctx, s.t, s.b, visits); err != nil || s.steps != nil {
		return err
	}
	_, all := s.b.of(0, s.t.n)
	s.grid = newGrid(s.t, s.b, max(all, 1), s.t.unitFor(max(all, 1), slots), false)
	return s.grid.fill(ctx)
}

const (
	stageSteps = 4 << 20 // the most breakpoints for an exact curve
	stageCells = 8 << 20 // of a table otherwise
)

// distances is the number of differences of Backward and Held that a curve tries.
const distances = 16

// Curve returns plans by ascending time, of which none beats another in bytes and time. The first
// recomputes nothing. Each of several differences of Backward and Held has a front of plans. The curve
// takes all plans of a front, or with most above 0 about that many.
func (s *Stage) Curve(most int) []MicroBatch {
	p := newPath(s.t)
	p.all(0, s.t.n)
	list := []MicroBatch{p.point()}
	if s.b == nil {
		return list
	}
	all := list[0]
	least := max(all.Backward-all.Held, all.Backward/64, 1)
	for k := range distances + 1 {
		d := int64(0)
		if k > 0 {
			part := float64(k-1) / float64(distances-1)
			d = int64(float64(least) * math.Pow(float64(all.Backward)/float64(least), part))
		}
		for _, more := range []int64{0, all.Forward} {
			list = s.front(list, newSpine(s.t, s.b, available{forward: d + more, held: 0, backward: d}), most)
		}
	}
	slices.SortStableFunc(list, func(a, b MicroBatch) int { return cmp.Compare(a.Time, b.Time) })
	curve := list[:0]
	for _, p := range list {
		if !slices.ContainsFunc(curve, func(o MicroBatch) bool { return o.Beats(&p) }) {
			curve = append(curve, p)
		}
	}
	return curve
}

// front adds plans on a spine to a list, from the fewest bytes to no recomputation.
func (s *Stage) front(list []MicroBatch, on *spine, most int) []MicroBatch {
	type step struct {
		m    int64
		time float64
	}
	var steps []step
	var advice spineAdviser
	if s.steps != nil {
		fronts := newSpineFronts(s.steps, on)
		advice = fronts
		for _, at := range fronts.fronts[0] {
			steps = append(steps, step{at.bytes, s.steps.microseconds(at.price)})
		}
	} else {
		rows := newSpineRows(s.grid, on)
		advice = rows
		steps = append(steps, step{on.least[0], s.grid.microseconds(float32(rows.end(0, on.least[0])))})
		last := infinite
		for k, v := range rows.rows[0].v {
			if v < last {
				steps = append(steps, step{s.grid.bytes(rows.rows[0].lo+k, 0, s.t.n), s.grid.microseconds(v)})
				last = v
			}
		}
		steps = append(steps, step{on.all[0], 0})
	}
	n := len(steps)
	if most == 0 || most > n {
		most = n
	}
	for k := range most {
		at := steps[k*(n-1)/max(most-1, 1)]
		b := at.m + s.t.chain.Input
		bound := MicroBatch{nil, b + on.early(), b - on.backward, b, at.time}
		if bound.Held < 0 || slices.ContainsFunc(list, func(o MicroBatch) bool { return o.Beats(&bound) }) {
			continue
		}
		p := newPath(s.t)
		p.writeSpine(on, advice, 0, at.m)
		list = append(list, p.point())
	}
	return list
}
