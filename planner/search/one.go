package search

import (
	"cmp"
	"math"
	"slices"
)

// table is the least greatest bound of all cuts, by stage and first unit: with one stage on each worker.
//
//	least(s, i) = min over j of max(bound(s, i, j), least(s+1, j))
type table struct {
	f     *finder
	least [][]int64 // by stage, by unit
	next  [][]int32 // by stage, by unit: where the stage ends
	// raised are the bounds that are known to be more than quick says.
	raised map[[3]int]int64
	firm   map[[3]int]bool // whose worker was planned: the bound is what it is
}

// bound is what is known of a stage.
func (t *table) bound(s, i, j int) int64 {
	q := t.f.p.quick(s, i, j)
	if len(t.raised) > 0 {
		q = max(q, t.raised[[3]int{s, i, j}])
	}
	return q
}

// fill computes the table as far as bounds below the best time go.
func (t *table) fill() {
	p := t.f.p
	n, stages := p.units, p.stages()
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
		fs, bs := p.forwards(p.workers[p.place[s]].class), p.sums[p.workers[p.place[s]].class].whole
		for i := s; i <= n-(stages-s); i++ {
			best, at := int64(none), int32(-1)
			if s == 0 && i > 0 {
				break
			}
			before := int64(0)
			if s > 0 {
				before = p.forwards(p.fast[s-1])[i]
			}
			first := i + 1
			if s == stages-1 {
				first = n
			}
			for j := first; j <= n-(stages-1-s); j++ {
				if load := before + int64(p.m)*(fs[j]-fs[i]+bs[j]-bs[i]); load >= min(best, t.f.goal()) {
					break // and so do longer ones
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

// path is the cut of the least greatest bound, nil if no cut is below the best time.
func (t *table) path() cut {
	if t.least[0][0] >= t.f.goal() {
		return nil
	}
	c := cut{0}
	for s := range t.f.p.stages() {
		c = append(c, int(t.next[s][c[s]]))
	}
	return c
}

// refine learns more of the stage s of a cut, from i to j. It reports whether its bound has risen.
func (t *table) refine(s, i, j int) (bool, error) {
	key := [3]int{s, i, j}
	p := t.f.p
	if t.firm[key] {
		return false, nil
	}
	was := t.bound(s, i, j)
	if !p.limited {
		first, last, times := make([]int, p.stages()), make([]int, p.stages()), make([]stageTimes, p.stages())
		first[s], last[s], times[s] = i, j, p.times(s, i, j)
		p.work += len(p.order[p.place[s]].list)
		t.firm[key] = true
		t.raised[key] = p.bound(p.place[s], first, last, times)
		return t.bound(s, i, j) > was, nil
	}
	if _, known := t.raised[key]; !known {
		extra, load := p.again(s, i, j), int64(0)
		if t.raised[key] = none; extra < none {
			a := p.around(s, i, j)
			class := p.workers[p.place[s]].class
			fs, bs := p.forwards(class), p.sums[class].whole
			load = a.before + int64(p.m)*(fs[j]-fs[i]+bs[j]-bs[i]) + extra
			if !p.schedule.Split {
				load += a.after
			}
			t.raised[key] = load
		}
		if t.bound(s, i, j) > was {
			return true, nil
		}
	}
	first, last := make([]int, p.stages()), make([]int, p.stages())
	first[s], last[s] = i, j
	one, err := p.oracle.ask(t.f.ctx, p.place[s], first, last)
	if err != nil {
		return false, err
	}
	t.firm[key] = true
	t.raised[key] = max(t.raised[key], one.bound)
	return t.bound(s, i, j) > was, nil
}

// check learns more of the stages of a cut, those of the greatest bounds first, until the cut's greatest
// bound has risen, which it reports: another cut may be the better one then.
func (t *table) check(c cut) (bool, error) {
	var stages []int
	greatest := int64(0)
	for s := range t.f.p.stages() {
		stages, greatest = append(stages, s), max(greatest, t.bound(s, c[s], c[s+1]))
	}
	slices.SortStableFunc(stages, func(a, b int) int { return cmp.Compare(t.bound(b, c[b], c[b+1]), t.bound(a, c[a], c[a+1])) })
	for _, s := range stages {
		for up := true; up; {
			var err error
			if up, err = t.refine(s, c[s], c[s+1]); err != nil {
				return false, err
			}
			if t.bound(s, c[s], c[s+1]) > greatest {
				return true, nil
			}
		}
	}
	return false, nil
}

// one searches where each worker has one stage.
func (f *finder) one() error {
	p := f.p
	if c, err := p.even(); err == nil && !p.limited {
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
	t := &table{f: f, raised: map[[3]int]int64{}, firm: map[[3]int]bool{}}
	for {
		t.fill()
		f.bound = max(f.bound, min(t.least[0][0], f.goal()))
		c := t.path()
		if c == nil || f.over() {
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

// descend looks at all cuts that begin with c whose bound is below the best time, the least bound first.
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
	first := i + 1
	if s == p.stages()-1 {
		first = p.units
	}
	class := p.workers[p.place[s]].class
	fs, bs := p.forwards(class), p.sums[class].whole
	before := int64(0)
	if s > 0 {
		before = p.forwards(p.fast[s-1])[i]
	}
	for j := first; j <= p.units-(p.stages()-1-s); j++ {
		if before+int64(p.m)*(fs[j]-fs[i]+bs[j]-bs[i]) >= f.goal() {
			break
		}
		if b := max(bound, t.bound(s, i, j), t.least[s+1][j]); b < f.goal() {
			list = append(list, choice{j, b})
		}
	}
	slices.SortStableFunc(list, func(a, b choice) int { return cmp.Compare(a.bound, b.bound) })
	for _, one := range list {
		if one.bound >= f.goal() || f.over() {
			break
		}
		p.work++
		for {
			up, err := t.refine(s, i, one.j)
			if err != nil {
				return err
			}
			if one.bound = max(one.bound, t.bound(s, i, one.j)); !up || one.bound >= f.goal() {
				break
			}
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

// gpipe is the best cut for GPipe on links that cost nothing, without limits, and its time:
//
//	sum of f and b + (m - 1) (greatest f + greatest b)
//
// For each time that the slowest forward may take, the least time of the slowest backward is found by
// putting as many units as will go onto each worker in turn.
func (p *space) gpipe() (c cut, step int64, ok bool) {
	if p.schedule.Name != "gpipe" || p.limited || p.replicas > 1 || len(p.sums) > 1 {
		return nil, 0, false
	}
	for _, h := range p.link {
		if h != (hop{}) {
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
	least := func(f int64) (b int64, c cut) { // the least b for f, by halving
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
