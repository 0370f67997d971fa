package plan

import (
	"cmp"
	"math"
	"slices"
)

// table finds the cut with the least greatest cost of a stage, where each worker has one stage:
//
//	least(s, i) = min over j of max(cost(s, i, j), least(s+1, j))
//
// Costs are lower bounds at first. Along the cut that looks best they are refined until they are
// exact.
type table struct {
	p      *space
	costs  stepCosts
	least  [][]int64        // by stage, by unit
	next   [][]int32        // by stage, by unit: where the stage ends
	raised map[[3]int]int64 // refined bounds, by stage, first unit and end
	exact  map[[3]int]bool  // whether the bound is exact
}

func newTable(p *space, c stepCosts) *table {
	return &table{p: p, costs: c, raised: map[[3]int]int64{}, exact: map[[3]int]bool{}}
}

func (t *table) bound(s, i, j int) int64 {
	b := t.costs.bound(s, i, j)
	if len(t.raised) > 0 {
		b = max(b, t.raised[[3]int{s, i, j}])
	}
	return b
}

// fill computes the table for all cuts below the goal.
func (t *table) fill() {
	n, stages, goal := t.p.units, t.p.stages(), t.costs.goal()
	if t.least == nil {
		for range stages + 1 {
			t.least, t.next = append(t.least, make([]int64, n+1)), append(t.next, make([]int32, n+1))
		}
	}
	for i := range t.least[stages] {
		t.least[stages][i] = none
	}
	t.least[stages][n] = 0
	for s := stages - 1; s >= 0; s-- {
		for i := s; i <= n-(stages-s) && (s > 0 || i == 0); i++ {
			best, at := int64(none), int32(-1)
			for j := t.first(s, i); j <= n-(stages-1-s); j++ {
				if t.costs.rising(s, i, j) >= min(best, goal) {
					break // longer stages have no lower cost
				}
				if rest := t.least[s+1][j]; rest < best {
					if b := max(t.bound(s, i, j), rest); b < best {
						best, at = b, int32(j)
					}
				}
			}
			t.least[s][i], t.next[s][i] = best, at
		}
	}
}

// first returns the first end of stage s that begins with unit i.
func (t *table) first(s, i int) int {
	if s == t.p.stages()-1 {
		return t.p.units
	}
	return i + 1
}

// path returns the cut of the least greatest cost; nil if no cut is below the goal.
func (t *table) path() cut {
	if t.least[0][0] >= t.costs.goal() {
		return nil
	}
	c := cut{0}
	for s := range t.p.stages() {
		c = append(c, int(t.next[s][c[s]]))
	}
	return c
}

// refine raises the bound of a stage's cost, which must not be exact, if it can.
func (t *table) refine(s, i, j int) error {
	key := [3]int{s, i, j}
	before, again := t.raised[key]
	bound, exact, err := t.costs.refine(s, i, j, again)
	t.raised[key], t.exact[key] = max(before, bound), exact
	return err
}

// check refines the costs of a cut, the greatest first. It reports whether the greatest has risen:
// another cut may be better then. Otherwise all of them are exact.
func (t *table) check(c cut) (bool, error) {
	var stages []int
	greatest := int64(0)
	for s := range t.p.stages() {
		stages, greatest = append(stages, s), max(greatest, t.bound(s, c[s], c[s+1]))
	}
	slices.SortStableFunc(stages,
		func(a, b int) int { return cmp.Compare(t.bound(b, c[b], c[b+1]), t.bound(a, c[a], c[a+1])) })
	for _, s := range stages {
		for !t.exact[[3]int{s, c[s], c[s+1]}] {
			if err := t.refine(s, c[s], c[s+1]); err != nil {
				return false, err
			}
			if t.bound(s, c[s], c[s+1]) > greatest {
				return true, nil
			}
		}
	}
	return false, nil
}

// stepCosts compares cuts by bounds of their steps.
type stepCosts struct{ *finder }

func (f stepCosts) bound(s, i, j int) int64 { return f.p.closedFormBound(s, i, j) }

// rising returns the stage's load after the forwards before it, or none if its bytes exceed the
// limit in any plan.
func (f stepCosts) rising(s, i, j int) int64 {
	p := f.p
	if limit := p.workers[p.place[s]].bytes; p.limited && limit > 0 && p.oracle.leastBytes(s, i, j) > limit {
		return none
	}
	return p.load(s, i, j)
}

func (f stepCosts) refine(s, i, j int, again bool) (int64, bool, error) {
	p := f.p
	first, last := make([]int, p.stages()), make([]int, p.stages())
	first[s], last[s] = i, j
	if !p.limited {
		times := make([]stageTimes, p.stages())
		times[s] = p.times(s, i, j)
		p.work += len(p.order[p.place[s]].list)
		return p.bound(p.place[s], first, last, times), true, nil
	}
	if !again { // first with the least recomputation, for which no plan is made
		recomputed := p.leastRecomputation(s, i, j)
		if recomputed == none {
			return none, true, nil
		}
		load := p.load(s, i, j) + recomputed
		if !p.schedule.Split {
			load += p.around(s, i, j).after
		}
		return load, false, nil
	}
	one, err := p.oracle.ask(f.ctx, p.place[s], first, last)
	if err != nil {
		return 0, false, err
	}
	return one.bound, true, nil
}

// one searches where each worker has one stage.
func (f *finder) one() error {
	p := f.p
	if c, err := p.cutByTime(); err == nil && !p.limited {
		if _, err := f.try(c); err != nil {
			return err
		}
		if err := f.improve(10 * p.stages()); err != nil {
			return err
		}
	}
	if c, bound, ok := p.gpipe(); ok {
		_, err := f.try(c)
		f.bound = bound
		return err
	}
	if p.limited { // the first cut that fits may be far from the best
		if err := f.improve(8 * p.stages()); err != nil {
			return err
		}
	}
	t := newTable(p, stepCosts{f})
	for {
		t.fill()
		f.bound = max(f.bound, min(t.least[0][0], f.goal()))
		c := t.path()
		if c == nil || f.exhausted() {
			break
		}
		raised, err := t.check(c)
		if err != nil {
			return err
		}
		if raised {
			continue
		}
		if _, err := f.try(c); err != nil {
			return err
		}
		break
	}
	if !p.limited {
		if err := f.improve(2 * p.stages()); err != nil {
			return err
		}
	}
	if err := f.descend(t, cut{0}, 0); err != nil {
		return err
	}
	if !f.spent {
		f.bound = f.goal()
	}
	return nil
}

// descend looks at all cuts that begin with c and have a bound below the goal, the least bound
// first.
func (f *finder) descend(t *table, c cut, bound int64) error {
	p, s := f.p, len(c)-1
	if s == p.stages() {
		_, err := f.try(c)
		return err
	}
	type choice struct {
		j     int
		bound int64
	}
	var list []choice
	i := c[s]
	for j := t.first(s, i); j <= p.units-(p.stages()-1-s); j++ {
		if t.costs.rising(s, i, j) >= f.goal() {
			break
		}
		if b := max(bound, t.bound(s, i, j), t.least[s+1][j]); b < f.goal() {
			list = append(list, choice{j, b})
		}
	}
	slices.SortStableFunc(list, func(a, b choice) int { return cmp.Compare(a.bound, b.bound) })
	for _, one := range list {
		if one.bound >= f.goal() || f.exhausted() {
			break
		}
		p.work++
		for one.bound < f.goal() && !t.exact[[3]int{s, i, one.j}] {
			if err := t.refine(s, i, one.j); err != nil {
				return err
			}
			one.bound = max(one.bound, t.bound(s, i, one.j))
		}
		if one.bound >= f.goal() {
			continue
		}
		if err := f.descend(t, append(c[:s+1:s+1], one.j), one.bound); err != nil {
			return err
		}
	}
	return nil
}

// gpipe is the best cut for GPipe on free links, without limits, and its time:
//
//	sum of f and b + (m - 1) (greatest f + greatest b)
//
// For each time of the slowest forward it finds the least time of the slowest backward: it puts
// units onto each worker in turn until they reach one of the two.
func (p *space) gpipe() (c cut, step int64, ok bool) {
	if p.schedule.Name != "gpipe" || p.limited || p.replicas > 1 || len(p.sums) > 1 {
		return nil, 0, false
	}
	for _, h := range p.link {
		if h != (linkCost{}) {
			return nil, 0, false
		}
	}
	a, n, stages := &p.sums[0], p.units, p.stages()
	fits := func(f, b int64) (c cut) {
		c = cut{0}
		for s := range stages {
			i := c[s]
			j := i + 1
			for j < n-(stages-1-s) && a.forward[j+1]-a.forward[i] <= f && a.whole[j+1]-a.whole[i] <= b {
				j++
			}
			if a.forward[j]-a.forward[i] > f || a.whole[j]-a.whole[i] > b {
				return nil
			}
			c = append(c, j)
		}
		if c[stages] < n {
			return nil
		}
		return c
	}
	least := func(f int64) (b int64, c cut) { // by halving
		low, high := int64(0), a.whole[n]
		if c = fits(f, high); c == nil {
			return none, nil
		}
		for low < high {
			mid := low + (high-low)/2
			if one := fits(f, mid); one != nil {
				high, c = mid, one
			} else {
				low = mid + 1
			}
		}
		return high, c
	}
	var times []int64
	for i := range n {
		for j := i + 1; j <= n; j++ {
			times = append(times, a.forward[j]-a.forward[i])
		}
	}
	slices.Sort(times)
	times = slices.Compact(times)
	lowest, _ := least(math.MaxInt64 / 2) // of backwards, whatever forwards take
	best := int64(none)
	at, _ := slices.BinarySearchFunc(times, 0, func(f int64, _ int) int { // the first that will do
		if fits(f, a.whole[n]) == nil {
			return -1
		}
		return 1
	})
	for _, f := range times[at:] {
		if f+lowest >= best {
			break
		}
		if fits(f, best-f-1) == nil {
			continue
		}
		b, one := least(f)
		if f+b < best {
			best, c = f+b, one
		}
	}
	return c, a.forward[n] + a.whole[n] + int64(p.m-1)*best, true
}
