package solver

import (
	"cmp"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
)

// Point is a plan on a curve of time over memory: with the limit that it was found under,
// [Table.Plan] returns it.
type Point struct {
	Limit, Peak int64   // bytes
	Time        float64 // microseconds
}

// Curve is the plans of the table that no other of them beats, by ascending peak and descending
// time: from the least limit that has a plan to that where nothing is computed again, or to Most.
// Every point is a plan that exists, with its exact peak; if the table is exact, every plan that no
// other beats is a point. It is empty if Most is below the least.
func (t *Table) Curve() []Point {
	limits := t.limits()
	points := make([]Point, len(limits))
	var next atomic.Int64
	var wait sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(limits)) {
		wait.Go(func() {
			for {
				k := int(next.Add(1)) - 1
				if k >= len(limits) {
					return
				}
				p := t.path(limits[k] - t.t.chain.Input)
				points[k] = Point{limits[k], p.peak, t.t.once + p.extra}
			}
		})
	}
	wait.Wait()
	slices.SortStableFunc(points, func(a, b Point) int {
		return cmp.Or(cmp.Compare(a.Peak, b.Peak), cmp.Compare(a.Time, b.Time))
	})
	curve := points[:0]
	for _, p := range points {
		if len(curve) == 0 || p.Time < curve[len(curve)-1].Time {
			curve = append(curve, p)
		}
	}
	return curve
}

// pointsOfLongChain is how many limits a curve of a long chain has: each takes some tenths of a
// second.
const pointsOfLongChain = 40

// limits are those where the table may have a new plan: the breakpoints; the least and the greatest
// and all slots between; or, of a long chain, some at even distances.
func (t *Table) limits() (ms []int64) {
	if t.steps != nil {
		for _, s := range t.steps.whole() {
			ms = append(ms, s.bytes+t.t.chain.Input)
		}
		return ms
	}
	least, all := t.of()
	if t.beam != nil {
		for k := range int64(pointsOfLongChain) {
			ms = append(ms, t.t.chain.Input+least+(all-least)/(pointsOfLongChain-1)*k)
		}
		return append(ms, t.t.chain.Input+all)
	}
	most := min(all, t.grids[0].most)
	if most < least {
		return nil
	}
	ms = []int64{least, most}
	for k, g := range t.grids {
		from := least
		if k+1 < len(t.grids) {
			from = max(least, t.grids[k+1].most+1)
		}
		for s := g.slotAbove(from, 0, t.t.n); g.bytes(s, 0, t.t.n) < min(g.most+1, most); s++ {
			ms = append(ms, g.bytes(s, 0, t.t.n))
		}
	}
	for k := range ms {
		ms[k] += t.t.chain.Input
	}
	return ms
}
