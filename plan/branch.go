package plan

import (
	"cmp"
	"slices"
)

// several searches where workers have several stages. It lists cuts stage by stage, even loads
// first. It cuts them off by the loads of workers, by the time left for them, and by the bound of
// each worker with all of its stages placed.
func (f *finder) several() error {
	p := f.p
	f.bound = p.floor()
	c, err := p.cutByTime()
	if err != nil {
		return err
	}
	if f.bound >= f.step {
		return nil
	}
	if _, err := f.try(c); err != nil {
		return err
	}
	if f.cut == nil && p.limited { // fewer bytes where most are
		if _, err := f.try(p.cutByBytes()); err != nil {
			return err
		}
	}
	tries := 60 * p.stages()
	if p.limited {
		tries = 2 * p.stages()
	}
	if err := f.improve(tries); err != nil {
		return err
	}
	b := &branch{f: f, load: make([]int64, len(p.workers)), outer: make([]int64, len(p.workers)),
		fastest: p.fast[p.stages()-1],
		first:   make([]int, p.stages()), last: make([]int, p.stages()), times: make([]stageTimes, p.stages())}
	for w := range b.outer {
		b.outer[w] = none // not known yet
	}
	if err := b.descend(cut{0}); err != nil {
		return err
	}
	if !f.spent {
		f.bound = f.goal()
	}
	return nil
}

// cutByBytes returns the cut of evenly balanced bytes.
func (p *space) cutByBytes() cut {
	bytes := make([]int64, p.units+1)
	for i, l := range p.chain.Layers {
		bytes[i+1] = bytes[i] + l.Saved + 2*l.WeightGradient + 1
	}
	c := cut{0}
	for s := 1; s < p.stages(); s++ {
		at, _ := slices.BinarySearch(bytes, bytes[p.units]*int64(s)/int64(p.stages()))
		c = append(c, min(max(at, c[s-1]+1), p.units-(p.stages()-s)))
	}
	return append(c, p.units)
}

// floor returns a lower bound of the step of any cut: the mean load, with the first units upstream
// of each worker; all computations of a micro-batch; and the longest unit for all micro-batches.
func (p *space) floor() int64 {
	a := &p.sums[p.fast[p.stages()-1]]
	f := p.forwards(p.fast[p.stages()-1])
	sum := int64(p.m) * (f[p.units] + a.whole[p.units])
	for w := range p.workers {
		sum += f[w] // each of the stages before has a unit at least
		if !p.schedule.Split {
			sum += a.whole[w]
		}
	}
	out := (sum + int64(len(p.workers)) - 1) / int64(len(p.workers))
	for i := range p.units {
		out = max(out, int64(p.m)*(f[i+1]-f[i]+a.whole[i+1]-a.whole[i]))
	}
	return max(out, f[p.units]+p.backwards(p.fast[p.stages()-1], 0, p.units))
}

// likely estimates a step: its floor, and the idle time while the first and the last micro-batches
// pass.
func (p *space) likely(floor int64) int64 {
	return floor + floor*int64(len(p.workers)-1)/int64(p.m*p.virtual)
}

// branch lists cuts in depth.
type branch struct {
	f       *finder
	load    []int64 // by worker: time of its stages so far, for one micro-batch
	outer   []int64 // by worker: time before and after its first stage
	fastest int
	// By stage, for the worker that mayBeat looks at.
	first, last []int
	times       []stageTimes
}

func (b *branch) descend(c cut) error {
	p, f, s := b.f.p, b.f, len(c)-1
	if s == p.stages() {
		_, err := f.try(c)
		return err
	}
	a, w := p.sumsOf(s), p.place[s]
	fs := p.forwards(p.workers[w].class)
	i, first := c[s], c[s]+1
	if s == p.stages()-1 {
		first = p.units
	}
	known := b.outer[w] < none
	if !known {
		out := p.around(s, i, i+1)
		if b.outer[w] = out.before; !p.schedule.Split {
			b.outer[w] += out.after
		}
		defer func() { b.outer[w] = none }()
	}
	type choice struct {
		j    int
		load int64
		from int64 // the even share
	}
	var list []choice
	all := p.forwards(b.fastest)
	left := all[p.units] - all[i] + p.sums[b.fastest].whole[p.units] - p.sums[b.fastest].whole[i]
	share := left / int64(p.stages()-s)
	for j := first; j <= p.units-(p.stages()-1-s); j++ {
		load := fs[j] - fs[i] + a.whole[j] - a.whole[i]
		if b.outer[w]+int64(p.m)*(b.load[w]+load) >= f.goal() {
			break
		}
		list = append(list, choice{j, load, max(load-share, share-load)})
	}
	slices.SortStableFunc(list, func(x, y choice) int { return cmp.Compare(x.from, y.from) })
	for _, one := range list {
		if f.exhausted() {
			return nil
		}
		p.work++
		if b.outer[w]+int64(p.m)*(b.load[w]+one.load) >= f.goal() {
			continue // it was below before
		}
		next := append(c[:s+1:s+1], one.j)
		b.load[w] += one.load
		ok, err := b.mayBeat(next)
		if err == nil && ok {
			err = b.descend(next)
		}
		b.load[w] -= one.load
		if err != nil {
			return err
		}
	}
	return nil
}

// mayBeat reports whether a cut with these first stages may lead to a step below the goal.
func (b *branch) mayBeat(c cut) (bool, error) {
	p, f := b.f.p, b.f
	s := len(c) - 2
	all, whole := p.forwards(b.fastest), p.sums[b.fastest].whole
	i := c[s+1]
	left, spare := all[p.units]-all[i]+whole[p.units]-whole[i], int64(0)
	for w := range p.workers {
		outer := b.outer[w]
		if outer >= none {
			outer = 0
		}
		spare += max(0, (f.goal()-1-outer)/int64(p.m)-b.load[w])
	}
	if len(p.sums) == 1 && spare < left {
		return false, nil
	}
	w := p.place[s]
	if stages := p.order[w].stages; stages[len(stages)-1] != s {
		return true, nil
	}
	first, last, times := b.first, b.last, b.times // only those of the worker's stages count
	for _, t := range p.order[w].stages {
		first[t], last[t] = c[t], c[t+1]
		times[t] = p.times(t, c[t], c[t+1])
		if p.limited {
			times[t].forward = all[c[t+1]] - all[c[t]]
		}
	}
	p.work += len(p.order[w].list)
	if p.bound(w, first, last, times) >= f.goal() {
		return false, nil
	}
	if !p.limited {
		return true, nil
	}
	if s == p.stages()-2 && f.cannotBeat(append(c[:s+2:s+2], p.units), f.goal()) { // all of the cut is known
		return false, nil
	}
	one, err := p.oracle.ask(f.ctx, w, first, last)
	return err == nil && one.bound < f.goal(), err
}
