package plan

import (
	"cmp"
	"context"
	"math"
	"slices"
)

// lightest looks for a cut that needs a small part of the limit on its fullest device, and
// stops at a cut that fits. Parts are in units of 1/wholeLimit.
type lightest struct {
	p     *space
	ctx   context.Context
	cut   cut   // the best so far; nil if none is below the first part
	part  int64 // of its fullest device
	plans int   // the number of device plans at which the search ends
}

// wholeLimit is the part of a device that needs all of its limit.
const wholeLimit = 1 << 20

// lightest searches for a cut that needs less than a part of the limit on its fullest device.
func (p *space) lightest(ctx context.Context, part int64) (*lightest, error) {
	l := &lightest{p: p, ctx: ctx, part: part, plans: p.oracle.solved + p.wishes.plans()}
	return l, cmp.Or(l.search(), ctx.Err())
}

// partOf returns bytes as a part of a worker's limit, rounded up.
func (l *lightest) partOf(w int, bytes int64) int64 {
	limit := l.p.workers[w].bytes
	if limit == 0 {
		return 0
	}
	return int64(min(math.Ceil(float64(bytes)/float64(limit)*wholeLimit), none-1))
}

// need plans a worker's stages and returns the part of its limit that they need. Below the whole
// limit it is a lower bound.
func (l *lightest) need(w int, first, last []int) (int64, error) {
	bound := l.partOf(w, l.p.leastBytes(w, first, last))
	if l.p.workers[w].bytes == 0 {
		return bound, nil
	}
	c, err := l.p.oracle.solve(l.ctx, w, first, last)
	if err != nil {
		return 0, err
	}
	return max(bound, l.partOf(w, c.need)), nil
}

func (l *lightest) exhausted() bool {
	return l.p.oracle.solved >= l.plans || l.ctx.Err() != nil || l.cut != nil && l.part <= wholeLimit
}

// search moves the boundaries of a cut as long as that helps.
func (l *lightest) search() error {
	p := l.p
	spread := cut{}
	for s := range p.stages() + 1 {
		spread = append(spread, p.units*s/p.stages())
	}
	starts := []cut{p.cutByBytes(), spread}
	if even, err := p.cutByTime(); err == nil {
		starts = append(starts, even)
	}
	for _, c := range starts {
		if err := l.try(c); err != nil {
			return err
		}
	}
	for better := l.cut != nil; better; {
		better = false
		for s := 1; s < p.stages(); s++ {
			for _, by := range []int{1, -1} {
				c := slices.Clone(l.cut)
				if c[s] += by; c[s] <= c[s-1] || c[s] >= c[s+1] {
					continue
				}
				if l.exhausted() {
					return nil
				}
				before := l.part
				if err := l.try(c); err != nil {
					return err
				}
				better = better || l.part < before
			}
		}
	}
	return nil
}

// try plans the devices of a cut, the greatest bounds first, until one needs as much as the best
// cut.
func (l *lightest) try(c cut) error {
	var workers []int
	bounds := make([]int64, len(l.p.workers))
	for w := range l.p.workers {
		workers, bounds[w] = append(workers, w), l.partOf(w, l.p.leastBytes(w, c, c[1:]))
	}
	slices.SortStableFunc(workers, func(a, b int) int { return cmp.Compare(bounds[b], bounds[a]) })
	most := int64(0)
	for _, w := range workers {
		if bounds[w] >= l.part {
			return nil
		}
		part, err := l.need(w, c, c[1:])
		if most = max(most, part); err != nil || most >= l.part {
			return err
		}
	}
	l.cut, l.part = slices.Clone(c), most
	return nil
}
