package solver

import (
	"context"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
)

// levels decide how many bytes each micro-batch may hold, in multiples of unit, so that the sum of
// times is least. That is dynamic programming from the last micro-batch to the first. Its state is
// what the micro-batches after this one hold. State and share of this one determine how many bytes
// its backward has available and how many it may hold.
//
// time(b, r, s) is the least time of a micro-batch that holds up to s units while those after it
// hold r. It is that of a spine with backward = limit - there - r units and held = s units. A
// spine's times depend only on the difference of these two, so one spine, filled once, serves all r
// and s of the same sum.
//
// The bytes that forwards have available depend on what the micro-batches before hold. They are not
// looked at here but when plans are made.
type levels struct {
	f      *microBatches
	unit   int64
	levels int // of the limit
	// above are times that can be achieved, below times that no plan is below: of the first
	// micro-batch and of the later ones, at r*(levels+1)+s.
	above, below [2][]float64
	// best is, by micro-batch and by the levels that it and those after it hold together, their
	// least time. share is the levels of the micro-batch itself.
	best  [][]float64
	share [][]int16
}

const (
	levelsPerShare           = 16
	fewestLevels, mostLevels = 64, 256
	// A stage of few layers has few shares, which coarse levels cannot tell apart, and its tables
	// are small.
	fewLayers, levelsOfFewLayers = 8, 1024
)

func newLevels(f *microBatches) *levels {
	l := &levels{f: f}
	levels := min(max(levelsPerShare*f.k, fewestLevels), mostLevels)
	if f.first.t.n <= fewLayers {
		levels = levelsOfFewLayers
	}
	l.unit = max(1, int64(ceilDiv(f.limit, int64(levels))))
	l.levels = ceilDiv(f.limit, l.unit) // the last may be a part of one
	return l
}

// fill computes times and shares.
func (l *levels) fill(ctx context.Context) error {
	w := l.levels + 1
	for side := range 2 {
		l.above[side], l.below[side] = make([]float64, w*w), make([]float64, w*w)
	}
	var next atomic.Int64
	var wait sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wait.Go(func() {
			for ctx.Err() == nil {
				sum := int(next.Add(1)) - 1
				if sum > l.levels {
					return
				}
				for b := range 2 {
					s := l.f.side(b)
					l.times(l.above[b], s.above, b, sum, 1)
					l.times(l.below[b], s.below, b, sum, 1-s.below.slack())
				}
			}
		})
	}
	wait.Wait()
	if err := ctx.Err(); err != nil {
		return err
	}
	l.shares()
	return nil
}

// times are those of micro-batch b for all r and s of one sum.
func (l *levels) times(out []float64, g *grid, b, sum int, factor float64) {
	f := l.f
	top := f.limit - f.there(b)
	rows := newSpineRows(g, newSpine(g.t, g.b, available{forward: 1 << 61, held: int64(sum) * l.unit, backward: top}))
	for r := range sum + 1 {
		m := top - int64(r)*l.unit - g.t.chain.Input
		out[r*(l.levels+1)+sum-r] = g.microseconds(rows.time(0, m)) * factor
	}
}

// shares is the dynamic programming.
func (l *levels) shares() {
	w := l.levels + 1
	after := make([]float64, w)
	for r := range after {
		after[r] = math.Inf(1)
	}
	after[0] = 0
	l.best, l.share = make([][]float64, l.f.k), make([][]int16, l.f.k)
	for b := l.f.k - 1; b >= 0; b-- {
		best, share := make([]float64, w), make([]int16, w)
		for r := range best {
			best[r] = math.Inf(1)
		}
		times := l.above[min(b, 1)]
		for r, cost := range after {
			if math.IsInf(cost, 1) {
				continue
			}
			for s, time := range times[r*w : r*w+w-r] {
				if sum := cost + time; sum < best[r+s] {
					best[r+s], share[r+s] = sum, int16(s)
				}
			}
		}
		l.best[b], l.share[b], after = best, share, best
	}
}

// caps is the bytes that each micro-batch may hold where all together hold at most so many levels,
// or nil if there is no way.
func (l *levels) caps(total int) []int64 {
	at := -1
	for r := 0; r <= total; r++ {
		if cost := l.best[0][r]; !math.IsInf(cost, 1) && (at < 0 || cost < l.best[0][at]) {
			at = r
		}
	}
	if at < 0 {
		return nil
	}
	caps := make([]int64, l.f.k)
	for b := range caps {
		s := int(l.share[b][at])
		caps[b] = int64(s) * l.unit
		at -= s
	}
	return caps
}

// sum is the levels of all caps together.
func (l *levels) sum(caps []int64) (levels int) {
	for _, c := range caps {
		levels += int(c / l.unit)
	}
	return levels
}

// bound is a time beyond running everything once that no plans are below. A micro-batch that holds
// more than s-1 units and at most s is given the time of s, and leaves the others the bytes of s-1.
func (l *levels) bound() float64 {
	w := l.levels + 1
	after := make([]float64, w)
	for r := range after {
		after[r] = math.Inf(1)
	}
	after[0] = 0
	for b := l.f.k - 1; b >= 0; b-- {
		best := make([]float64, w)
		for r := range best {
			best[r] = math.Inf(1)
		}
		times := l.below[min(b, 1)]
		for r, cost := range after {
			for s, time := range times[r*w : r*w+w-r] {
				at := r + max(s-1, 0)
				best[at] = min(best[at], cost+time)
			}
		}
		after = best
	}
	least := math.Inf(1)
	for _, cost := range after {
		least = min(least, cost)
	}
	if math.IsInf(least, 1) {
		return 0
	}
	return least
}
