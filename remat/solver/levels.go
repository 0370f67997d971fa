package solver

import (
	"context"
	"encoding/binary"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
)

// levels decide how many bytes each item may hold, in multiples of unit, so that the sum of times
// is least.
//
// time(r, s) is the least time of an item that holds up to s units while the others in flight at
// its backward hold r. It is that of a spine with backward = limit - fixed - r units and held = s
// units. A spine's times depend only on the difference of these two, so one spine, filled once,
// serves all r and s of the same sum.
//
// The bytes that forwards have available depend on what others hold then. They are not looked at
// here but when plans are made.
type levels struct {
	f       *microBatches
	unit    int64
	levels  int // of the limit
	classes []*class
	of      []int // by item: its class
	noBound bool  // times below are not wanted
}

// class is the items with the same times.
type class struct {
	side   *side
	made   int64 // bytes of gradients of parameters at the backwards
	shares int64 // bytes of x(0) that may be a part of what another stage holds
	// least and most are the fewest and the most bytes that others than items take at a backward.
	least, most int64
	// above are times that can be achieved, with shares if there are: by r where all forwards come first,
	// otherwise by the sums of steadySums. below are times that no plan is below, by r.
	above, below []stairs
}

// stairs is a time over s, how many units an item holds. It is that of the last stair from s down, and infinite
// before the first. Stairs ascend in s, and their times fall: to hold more for the same time is of no use.
type stairs []stair

type stair struct {
	s    int32
	time float64
}

const (
	levelsPerShare           = 16
	fewestLevels, mostLevels = 64, 256
	// A stage of few layers has few shares, which coarse levels cannot tell apart, and its tables
	// are small.
	fewLayers, levelsOfFewLayers = 8, 1024
)

func newLevels(f *microBatches, o Options) *levels {
	l := &levels{f: f, of: make([]int, len(f.items)), noBound: o.NoBound}
	levels := min(max(levelsPerShare*f.inFlight(-1), fewestLevels), mostLevels)
	switch {
	case f.longest() <= fewLayers:
		levels = levelsOfFewLayers
	case f.rough(o):
		levels /= 2
	}
	l.unit = max(1, int64(ceilDiv(f.limit, int64(levels))))
	l.levels = ceilDiv(f.limit, l.unit) // the last may be a part of one
	l.classify()
	return l
}

// RoughLayers is the layers of a stage beyond which Options.Rough counts.
const RoughLayers = 24

// rough says that tables are to be coarse.
func (f *microBatches) rough(o Options) bool { return o.Rough && f.longest() > RoughLayers }

// inFlight is the most items in flight at once, of one stage or, for -1, of all.
func (f *microBatches) inFlight(stage int) (most int) {
	now := 0
	for _, e := range f.events {
		if e.item < 0 || stage >= 0 && f.items[e.item].stage != stage {
			continue
		}
		if e.backward {
			now--
		} else {
			now++
		}
		most = max(most, now)
	}
	return most
}

// mostClasses is the number of classes from which on items share one although others take
// different bytes at their backwards.
const mostClasses = 8

// classify finds the classes.
func (l *levels) classify() {
	made := int64(0)
	for _, e := range l.f.events {
		if !e.backward {
			continue
		}
		it := &l.f.items[e.item]
		at := slices.IndexFunc(l.classes, func(c *class) bool {
			return c.side == it.side && c.made == made && c.shares == it.shares &&
				(c.least == e.fixed || len(l.classes) >= mostClasses)
		})
		if at < 0 {
			at = len(l.classes)
			l.classes = append(l.classes, &class{side: it.side, made: made, shares: it.shares, least: e.fixed, most: e.fixed})
		}
		c := l.classes[at]
		c.least, c.most = min(c.least, e.fixed), max(c.most, e.fixed)
		l.of[e.item] = at
		if it.microBatch == 0 && it.side != nil {
			made += it.side.t.gradSum[it.side.t.n]
		}
	}
}

// fill computes the times: those below only for a bound, and those above only of the sums that are looked
// at.
func (l *levels) fill(ctx context.Context) error {
	all := make([]int, l.levels+1)
	for sum := range all {
		all[sum] = sum
	}
	first := l.f.forwardsFirst()
	tried := all
	if !first {
		tried = l.steadySums()
	}
	var list []filling
	add := func(out *[]stairs, c *class, g *grid, sums []int, top int64, factor float64, turn bool) {
		*out = make([]stairs, len(sums))
		list = append(list, filling{out, c, g, sums, top, factor, turn})
	}
	for _, c := range l.classes {
		s := c.side
		if s == nil {
			c.above = slices.Repeat([]stairs{{{}}}, len(tried))
			c.below = slices.Repeat([]stairs{{{}}}, len(all))
			continue
		}
		add(&c.above, c, s.above, tried, l.f.limit-c.most, 1, first)
		if !l.noBound {
			add(&c.below, c, s.below, all, l.f.limit-c.least, 1-s.below.slack(), true)
		}
	}
	sums := 0
	for _, f := range list {
		sums += len(f.sums)
	}
	err := inParallel(ctx, sums, func(memory *scratch, at int) {
		of := 0
		for at >= len(list[of].sums) {
			at, of = at-len(list[of].sums), of+1
		}
		f := &list[of]
		(*f.out)[at] = l.times(memory, f, f.sums[at])
	})
	if err != nil {
		return err
	}
	return inParallel(ctx, len(list), func(memory *scratch, at int) {
		if f := &list[at]; f.turn {
			*f.out = memory.byOthers(*f.out)
		}
	})
}

// filling is the times of a class in a grid, by sums, or where it turns by r.
type filling struct {
	out    *[]stairs
	class  *class
	grid   *grid
	sums   []int
	top    int64 // bytes at the backward in all
	factor float64
	turn   bool
}

// scratch is memory that a processor uses again and again.
type scratch struct {
	spine spine
	rows  spineRows
	out   stairs
	now   []float64
	begin []int32
	steps []turned
}

// inParallel does n tasks on all processors, or fails with ctx.Err() when ctx ends first.
func inParallel(ctx context.Context, n int, task func(memory *scratch, at int)) error {
	var next atomic.Int64
	var wait sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), n) {
		wait.Go(func() {
			var memory scratch
			for ctx.Err() == nil {
				at := int(next.Add(1)) - 1
				if at >= n {
					return
				}
				task(&memory, at)
			}
		})
	}
	wait.Wait()
	return ctx.Err()
}

// times are those of a sum, of items that may have shares more bytes alone. They fall with s, so that only what
// lies between two that differ is looked at.
func (l *levels) times(memory *scratch, f *filling, sum int) stairs {
	g, shares := f.grid, f.class.shares
	memory.spine.fill(g.t, g.b, available{forward: 1 << 61, held: int64(sum)*l.unit + shares, backward: f.top + shares})
	rows, out := &memory.rows, memory.out[:0]
	rows.fill(g, &memory.spine)
	at := func(s int) float64 {
		return g.microseconds(rows.time(0, f.top+shares-g.t.chain.Input-int64(sum-s)*l.unit)) * f.factor
	}
	var between func(from, to int, before, after float64)
	between = func(from, to int, before, after float64) {
		switch {
		case after >= before:
		case to == from+1:
			out = append(out, stair{int32(to), after})
		default:
			middle := from + (to-from)/2
			time := at(middle)
			between(from, middle, before, time)
			between(middle, to, time, after)
		}
	}
	between(-1, sum, math.Inf(1), at(sum))
	memory.out = out
	return slices.Clone(out)
}

// turned is the time of a sum from an r down.
type turned struct {
	sum  int32
	time float64
}

// byOthers are the times of all sums, by r. From r to r-1 every sum leaves a unit more to s, and few get another
// time by that.
func (memory *scratch) byOthers(sums []stairs) []stairs {
	n := len(sums)
	memory.now, memory.begin = sized(memory.now, n), sized(memory.begin, n+1)
	now, begin := memory.now, memory.begin
	clear(begin)
	for sum, list := range sums {
		now[sum] = math.Inf(1)
		for _, one := range list {
			begin[sum-int(one.s)+1]++
		}
	}
	for r := range n {
		begin[r+1] += begin[r]
	}
	memory.steps = sized(memory.steps, int(begin[n]))
	for sum, list := range sums {
		for _, one := range list {
			r := sum - int(one.s)
			memory.steps[begin[r]] = turned{int32(sum), one.time}
			begin[r]++ // in the end it is where the next r begins
		}
	}
	out := make([]stairs, n)
	for r := n - 1; r >= 0; r-- {
		from := int32(0)
		if r > 0 {
			from = begin[r-1]
		}
		for _, one := range memory.steps[from:begin[r]] {
			now[one.sum] = one.time
		}
		list, least := memory.out[:0], math.Inf(1)
		for s, time := range now[r:] {
			if time < least {
				list, least = append(list, stair{int32(s), time}), time
			}
		}
		out[r], memory.out = slices.Clone(list), list
	}
	return out
}

// realisations is how often caps are tried, each time with less held in all.
const realisations = 6

// shares are caps for all items, the best first.
func (l *levels) shares() (list [][]int64) {
	if l.f.forwardsFirst() {
		return l.falling()
	}
	return l.steady()
}

// forwardsFirst says that no forward comes after a backward.
func (f *microBatches) forwardsFirst() bool {
	first := slices.IndexFunc(f.events, func(e event) bool { return e.backward })
	return !slices.ContainsFunc(f.events[first:], func(e event) bool { return !e.backward && e.item >= 0 })
}

// backwards lists the items in the order of their backwards.
func (f *microBatches) backwards() (items []int) {
	for _, e := range f.events {
		if e.backward {
			items = append(items, e.item)
		}
	}
	return items
}

// falling are caps where all forwards come first, as in GPipe. Then the others in flight at a
// backward are those whose backwards follow. So dynamic programming from the last backward to the
// first is exact. Its state is what the items that follow hold.
func (l *levels) falling() (list [][]int64) {
	w := l.levels + 1
	items := l.f.backwards()
	after := l.nothing()
	best, share := make([][]float64, len(items)), make([][]int16, len(items))
	for at := len(items) - 1; at >= 0; at-- {
		sums, shares := l.impossible(), make([]int16, w)
		times := l.classes[l.of[items[at]]].above
		for r, cost := range after {
			if math.IsInf(cost, 1) {
				continue
			}
			for _, one := range times[r] {
				s := int(one.s)
				if sum := cost + one.time; sum < sums[r+s] {
					sums[r+s], shares[r+s] = sum, int16(s)
				}
			}
		}
		best[at], share[at], after = sums, shares, sums
	}
	total := l.levels
	for range realisations {
		at := -1
		for r := 0; r <= total; r++ {
			if cost := best[0][r]; !math.IsInf(cost, 1) && (at < 0 || cost < best[0][at]) {
				at = r
			}
		}
		if at < 0 {
			return list
		}
		caps := make([]int64, len(items))
		used := at
		for k, i := range items {
			s := int(share[k][at])
			caps[i] = int64(s) * l.unit
			at -= s
		}
		list = append(list, caps)
		// The forwards' own moments may not fit where everything may be held.
		total = used - 1 - total/16
	}
	return list
}

func (l *levels) impossible() []float64 {
	out := make([]float64, l.levels+1)
	for r := range out {
		out[r] = math.Inf(1)
	}
	return out
}

func (l *levels) nothing() []float64 {
	out := l.impossible()
	out[0] = 0
	return out
}

// bound is a time beyond running everything once that no plans are below.
//
// All items that are in flight at one moment have their forwards behind them. At the backward of
// one of them the others that follow are still in flight. So they take at least what they would
// take if there were no other items and all forwards came first. Sets of items that are each in
// flight at once and have no item in common add up.
func (l *levels) bound() float64 {
	if l.noBound {
		return 0
	}
	sum, known := 0.0, map[string]float64{}
	taken := make([]bool, len(l.f.items))
	for {
		set := l.f.crowd(taken)
		switch {
		case len(set) == 0 && l.f.forwardsFirst():
			return sum
		case len(set) == 0:
			return max(sum, l.average())
		}
		var key []byte
		for _, i := range set {
			taken[i] = true
			key = binary.AppendUvarint(key, uint64(l.of[i]))
		}
		bound, ok := known[string(key)]
		if !ok {
			bound = l.fallingBound(set)
			known[string(key)] = bound
		}
		sum += bound
	}
}

// crowd is the largest set of items that are in flight at once and not taken, in the order of their
// backwards.
func (f *microBatches) crowd(taken []bool) (set []int) {
	now, most, when := 0, 0, -1
	for at, e := range f.events {
		switch {
		case e.item < 0 || taken[e.item]:
		case e.backward:
			now--
		default:
			if now++; now > most {
				most, when = now, at
			}
		}
	}
	begun := make(map[int]bool, most)
	for at, e := range f.events {
		switch {
		case e.item < 0 || taken[e.item]:
		case !e.backward && at <= when:
			begun[e.item] = true
		case e.backward && at <= when:
			delete(begun, e.item)
		case e.backward && begun[e.item]:
			set = append(set, e.item)
		}
	}
	return set
}

// fallingBound is the bound of items in the order of their backwards, all of whose forwards come
// first. An item that holds more than s-1 units and at most s is given the time of s, and leaves
// the others the bytes of s-1.
func (l *levels) fallingBound(items []int) float64 {
	after := l.nothing()
	for _, i := range slices.Backward(items) {
		best := l.impossible()
		times := l.classes[l.of[i]].below
		for r, cost := range after {
			for _, one := range times[r] {
				at := r + max(int(one.s)-1, 0)
				best[at] = min(best[at], cost+one.time)
			}
		}
		after = best
	}
	if least := slices.Min(after); !math.IsInf(least, 1) {
		return least
	}
	return 0
}
