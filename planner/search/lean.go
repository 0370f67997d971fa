package search

import (
	"cmp"
	"context"
	"math"
	"slices"
)

// lean searches the cut whose devices need the least limit: the one of all cuts that takes the fewest times its
// limit on the device that takes most. Its bounds are those of space.least; what a device needs indeed is
// planned, which is slow, only where it is on the cut that looks best.
type lean struct {
	p     *space
	ctx   context.Context
	cut   cut     // the best, nil if none is below what was known before
	worst float64 // how many times its limit a device of it needs at most
	// fits says that any cut will do whose devices stay within their limits. These are not known to need less.
	fits  bool
	plans int // of devices that may still be made
	spent bool
}

// leanest searches the cut of the space whose devices need the least limit, if that is below worst times
// their limits.
func (p *space) leanest(ctx context.Context, worst float64, plans int) (*lean, error) {
	return (&lean{p: p, ctx: ctx, worst: worst, plans: plans + p.oracle.solved}).search()
}

// fitting searches a cut that fits.
func (p *space) fitting(ctx context.Context, plans int) (*lean, error) {
	return (&lean{p: p, ctx: ctx, worst: math.Nextafter(1, 2), fits: true, plans: plans + p.oracle.solved}).search()
}

func (l *lean) search() (*lean, error) {
	p := l.p
	c, err := p.light()
	if err != nil {
		return nil, err
	}
	if err := l.try(c); err != nil {
		return nil, err
	}
	if p.virtual == 1 {
		err = l.one()
	} else {
		err = l.several()
	}
	return l, err
}

// part is how many times its limit a worker needs.
func (l *lean) part(w int, bytes int64) float64 {
	if limit := l.p.workers[w].bytes; limit > 0 {
		return float64(bytes) / float64(limit)
	}
	return 0
}

// over says that the search is to end.
func (l *lean) over() bool {
	l.spent = l.spent || l.p.oracle.solved >= l.plans || l.ctx.Err() != nil
	return l.spent || l.fits && l.cut != nil
}

// need is how many times its limit a worker needs for its stages.
func (l *lean) need(w int, first, last []int) (float64, error) {
	if l.p.workers[w].bytes == 0 {
		return 0, nil
	}
	if l.fits {
		one, err := l.p.oracle.ask(l.ctx, w, first, last)
		if err != nil || one.bound < none {
			return 0, err
		}
		return math.Inf(1), nil
	}
	bytes, err := l.p.oracle.need(l.ctx, w, first, last)
	return l.part(w, bytes), err
}

// try plans the devices of a cut, those that look worst first, until one needs as much as the best cut.
func (l *lean) try(c cut) error {
	p := l.p
	var workers []int
	looks := make([]float64, len(p.workers))
	for w := range p.workers {
		workers, looks[w] = append(workers, w), l.part(w, p.least(w, c, c[1:]))
	}
	slices.SortStableFunc(workers, func(a, b int) int { return cmp.Compare(looks[b], looks[a]) })
	worst := 0.0
	for _, w := range workers {
		if looks[w] >= l.worst {
			return nil
		}
		x, err := l.need(w, c, c[1:])
		if err != nil {
			return err
		}
		if worst = max(worst, x); worst >= l.worst {
			return nil
		}
	}
	l.cut, l.worst = slices.Clone(c), worst
	return nil
}

// one searches where each worker has one stage, by the recurrence
//
//	least(s, i) = min over j of max(need(s, i, j), least(s+1, j))
//
// on what is known of needs, and learns more of the cut that it finds until all of it is known.
func (l *lean) one() error {
	p := l.p
	n, stages := p.units, p.stages()
	known := make([][][]float64, stages) // by stage, by first unit: of as many units, below the worst
	firm := map[[3]int]bool{}
	rows := func(s, i int) []float64 {
		if known[s] == nil {
			known[s] = make([][]float64, n)
		}
		if known[s][i] == nil {
			needs := make([]needs, 1)
			row := []float64{}
			for j := i; j <= n-(stages-s); j++ {
				needs[0].add(p, i, j)
				x := l.part(p.place[s], p.leastOf(p.place[s], needs))
				if x >= l.worst {
					break // and so do more units
				}
				row = append(row, x)
			}
			known[s][i] = row
		}
		return known[s][i]
	}
	least, next := make([][]float64, stages+1), make([][]int, stages+1)
	for s := range least {
		least[s], next[s] = make([]float64, n+1), make([]int, n+1)
	}
	for !l.over() {
		for i := range n {
			least[stages][i] = math.Inf(1)
		}
		for s := stages - 1; s >= 0; s-- {
			for i := s; i <= n-(stages-s); i++ {
				least[s][i] = math.Inf(1)
				if s == 0 && i > 0 {
					break
				}
				for k, x := range rows(s, i) {
					if x := max(x, least[s+1][i+k+1]); x < least[s][i] {
						least[s][i], next[s][i] = x, i+k+1
					}
				}
			}
		}
		if least[0][0] >= l.worst {
			return nil
		}
		c := cut{0}
		for s := range stages {
			c = append(c, next[s][c[s]])
		}
		looks := func(s int) *float64 { return &known[s][c[s]][c[s+1]-c[s]-1] }
		order := make([]int, stages)
		for s := range order {
			order[s] = s
		}
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(*looks(b), *looks(a)) })
		raised := false
		for _, s := range order {
			key := [3]int{s, c[s], c[s+1]}
			if firm[key] {
				continue
			}
			first, last := make([]int, stages), make([]int, stages)
			first[s], last[s] = c[s], c[s+1]
			x, err := l.need(p.place[s], first, last)
			if err != nil {
				return err
			}
			firm[key], *looks(s) = true, max(*looks(s), x)
			if raised = x > least[0][0]; raised {
				break // another cut may be the better one
			}
		}
		if !raised {
			return l.try(c)
		}
	}
	return nil
}

// several searches where workers have several stages: cuts are listed in depth, and cut off by what is needed
// by workers, as far as their stages are placed.
func (l *lean) several() error {
	for _, even := range []func() (cut, error){l.p.even, l.p.spread} {
		c, err := even()
		if err == nil {
			err = l.try(c)
		}
		if err != nil {
			return err
		}
	}
	if err := l.improve(); err != nil {
		return err
	}
	p := l.p
	first, last, looked := make([]int, p.stages()), make([]int, p.stages()), 0
	list := make([][]needs, len(p.workers)) // by worker, of its stages as far as they are placed
	for w := range list {
		list[w] = make([]needs, len(p.order[w].stages))
	}
	var descend func(c cut) error
	descend = func(c cut) error {
		s := len(c) - 1
		if s == p.stages() {
			return l.try(c)
		}
		w, i, from := p.place[s], c[s], c[s]+1
		if s == p.stages()-1 {
			from = p.units
		}
		k := slices.Index(p.order[w].stages, s)
		whole, own := k == len(p.order[w].stages)-1, &list[w][k]
		defer func() { first[s], last[s], *own = 0, 0, needs{} }()
		type choice struct {
			j     int
			needs needs
			looks float64
		}
		var choices []choice
		for j := i + 1; j <= p.units-(p.stages()-1-s); j++ {
			if own.add(p, i, j-1); j < from {
				continue
			}
			looked++
			looks := l.part(w, p.leastOf(w, list[w]))
			if looks >= l.worst {
				break // and so do more units
			}
			choices = append(choices, choice{j, *own, looks})
		}
		share := i + (p.units-i)/(p.stages()-s)
		slices.SortStableFunc(choices, func(a, b choice) int { return cmp.Compare(max(a.j-share, share-a.j), max(b.j-share, share-b.j)) })
		for _, one := range choices {
			if l.over() {
				return nil
			}
			if one.looks >= l.worst {
				continue // it was below before
			}
			if looked >= mostLooks {
				l.spent = true
				return nil
			}
			first[s], last[s], *own = i, one.j, one.needs
			if whole {
				if x, err := l.need(w, first, last); err != nil {
					return err
				} else if x >= l.worst {
					continue
				}
			}
			if err := descend(append(c[:s+1:s+1], one.j)); err != nil {
				return err
			}
		}
		return nil
	}
	return descend(cut{0})
}

// mostLooks is how many devices several looks at before it ends without proof.
const mostLooks = 300_000

// spread is the cut of about as many units everywhere.
func (p *space) spread() (cut, error) {
	c := cut{}
	for s := range p.stages() + 1 {
		c = append(c, p.units*s/p.stages())
	}
	return c, nil
}

// improve moves borders of the best cut as long as that helps.
func (l *lean) improve() error {
	for again := l.cut != nil; again; {
		again = false
		for s := 1; s < l.p.stages(); s++ {
			for _, by := range []int{1, -1} {
				c := slices.Clone(l.cut)
				if c[s] += by; c[s] <= c[s-1] || c[s] >= c[s+1] {
					continue
				}
				if l.over() {
					return nil
				}
				before := l.worst
				if err := l.try(c); err != nil {
					return err
				}
				again = again || l.worst < before
			}
		}
	}
	return nil
}
