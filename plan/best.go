package plan

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
)

// found is the result of the search in a space.
type found struct {
	cut   cut   // the best; nil if none is below the step known before
	step  int64 // its time; see evaluate for a cut that does not fit
	bound int64 // no cut of the space takes less, or less than what was to beat
}

func (f found) fits() bool { return f.cut != nil && f.step < none }

// best searches the space for a cut with a step below known. It climbs from several cuts, and looks
// at all cuts if there are few. Once it has a plan it only looks for steps below rival, the step of
// another schedule's plan. If no cut fits it returns the one that lacks least, unless known is the step
// of a plan.
func (p *space) best(ctx context.Context, known, rival int64) (found, error) {
	f := &finder{p: p, ctx: ctx, rival: rival, found: found{step: known, bound: p.floor()}}
	if known == none {
		f.step = math.MaxInt64
	}
	starts := []cut{p.cutByTime()}
	if p.virtual == 1 {
		c, bound := p.cutByBound()
		if f.bound = max(f.bound, bound); c != nil {
			starts = append(starts, c)
		}
	}
	if known < none && f.bound >= known {
		return found{step: known, bound: known}, nil
	}
	if p.limited {
		starts = append(starts, p.cutByBytes())
	}
	for _, c := range starts {
		f.try(c)
	}
	f.climb(f.cut)
	r := rand.New(rand.NewPCG(1, 2))
	for range kicks {
		if f.cut == nil || f.exhausted() || f.step == f.bound || p.stages() == 1 {
			break
		}
		c := slices.Clone(f.cut)
		for range 3 {
			s := 1 + r.IntN(p.stages()-1)
			c[s] = c[s-1] + 1 + r.IntN(c[s+1]-c[s-1]-1)
		}
		f.climb(c)
	}
	if all := p.cuts(); all < fewCuts && f.step > f.bound {
		if f.every(make(cut, 1, p.stages()+1)); !f.exhausted() {
			f.bound = f.goal()
		}
	}
	f.bound = min(f.bound, f.goal(), none)
	if f.err == nil {
		f.err = ctx.Err()
	}
	return f.found, f.err
}

// kicks is from how many other cuts a search climbs; fewCuts is how many it looks at one by one.
const kicks, fewCuts = 60, 4000

type finder struct {
	found
	p     *space
	ctx   context.Context
	rival int64
	err   error
}

// goal returns the step below which cuts are sought: the best known, under limits also of other
// schedules once a plan of this one is known.
func (f *finder) goal() int64 {
	if f.p.limited && f.step < none {
		return min(f.step, f.rival)
	}
	return f.step
}

// cannotBeat reports that a cut is no faster than a step, whatever is recomputed.
func (f *finder) cannotBeat(c cut, below int64) bool {
	p := f.p
	p.work += p.simulation.Actions()
	least := p.forwards(p.fast[p.stages()-1])
	times := make([]stageTimes, p.stages())
	for s := range times {
		times[s] = p.times(s, c[s], c[s+1])
		times[s].forward = min(times[s].forward, least[c[s+1]]-least[c[s]])
	}
	return p.simulate(c, times) >= below
}

// try evaluates a cut and returns its step.
func (f *finder) try(c cut) int64 {
	if f.p.limited && f.goal() < none && f.cannotBeat(c, f.goal()) {
		return math.MaxInt64
	}
	took, err := f.p.evaluate(f.ctx, c)
	if f.err = err; err == nil && took < f.step {
		f.step, f.cut = took, slices.Clone(c)
	}
	return took
}

// exhausted reports whether the search ends before all cuts were looked at.
func (f *finder) exhausted() bool {
	p := f.p
	most := p.wishes.Work
	if most == 0 {
		most = max(4_000_000, 1000*p.simulation.Actions())
	}
	return p.work >= most || p.limited && p.solved >= p.wishes.plans() || f.err != nil || f.ctx.Err() != nil
}

// climb moves units of a cut from one stage to another, and those in between along, as long as that
// shortens the step.
func (f *finder) climb(c cut) {
	if c == nil {
		return
	}
	step, stages := f.try(c), f.p.stages()
	for far := max(1, f.p.units/stages/2); far > 0; far /= 2 {
		for again := true; again; {
			again = false
			for width := range stages - 1 {
				for s := 1; s+width < stages; s++ {
					for _, by := range []int{far, -far} {
						next := slices.Clone(c)
						for k := range width + 1 {
							next[s+k] += by
						}
						if next[s] <= next[s-1] || next[s+width] >= next[s+width+1] {
							continue
						}
						if f.exhausted() {
							return
						}
						if took := f.try(next); took < step {
							c, step, again = next, took, true
						}
					}
				}
			}
		}
	}
}

// every tries all cuts that begin with c.
func (f *finder) every(c cut) {
	s, units, stages := len(c), f.p.units, f.p.stages()
	if s == stages {
		f.try(append(c, units))
		return
	}
	for i := c[s-1] + 1; i <= units-(stages-s) && !f.exhausted(); i++ {
		f.every(append(c, i))
	}
}

// cuts returns the number of cuts, or fewCuts if there are as many.
func (p *space) cuts() int {
	n := 1
	for s := 1; s < p.stages() && n < fewCuts; s++ {
		n = n * (p.units - s) / s
	}
	return min(n, fewCuts)
}

// cutByTime returns the cut of evenly balanced times.
func (p *space) cutByTime() cut {
	var costs []float64
	for _, l := range p.chain.Layers {
		costs = append(costs, l.Forward+l.Backward+1e-9)
	}
	counts, _ := Partition(costs, p.stages())
	return cutOf(counts)
}

// cutByBytes returns the cut of evenly balanced bytes.
func (p *space) cutByBytes() cut {
	var costs []float64
	for _, l := range p.chain.Layers {
		costs = append(costs, float64(l.Saved+2*l.WeightGradient+1))
	}
	counts, _ := Partition(costs, p.stages())
	return cutOf(counts)
}

// cutByBound returns the cut with the least greatest bound of a stage where each worker has one stage,
// and that bound, by dynamic programming:
//
//	least(s, i) = min over j of max(stageBound(s, i, j), least(s+1, j))
//
// It returns no cut if none has bytes enough.
func (p *space) cutByBound() (cut, int64) {
	n, stages := p.units, p.stages()
	least, next := make([]int64, n+1), make([][]int, stages)
	for i := range n {
		least[i] = none
	}
	for s := stages - 1; s >= 0; s-- {
		now := make([]int64, n+1)
		next[s] = make([]int, n+1)
		now[n] = none
		for i := range n {
			now[i] = none
			var need needs
			for j := i + 1; j <= n; j++ {
				need.addUnit(p, i, j-1)
				b := p.stageBound(s, i, j)
				if b >= now[i] || p.lacks(p.place[s], []needs{need}) > 0 {
					break // longer stages have no lower bound, and need no fewer bytes
				}
				if b = max(b, least[j]); b < now[i] {
					now[i], next[s][i] = b, j
				}
			}
		}
		least = now
	}
	if least[0] >= none {
		return nil, none
	}
	c := cut{0}
	for s := range stages {
		c = append(c, next[s][c[s]])
	}
	return c, least[0]
}
