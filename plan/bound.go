package plan

// forwards returns prefix sums of the least times of forwards, at a class of speed.
func (p *space) forwards(class int) []int64 {
	if p.limited {
		return p.sums[class].least
	}
	return p.sums[class].forward
}

// backwards returns the time of backwards, or of their first parts, for units from i up to but not
// including j.
func (p *space) backwards(class, i, j int) int64 {
	a := &p.sums[class]
	if p.schedule.Split {
		return a.whole[j] - a.whole[i] - a.second[j] + a.second[i]
	}
	return a.whole[j] - a.whole[i]
}

// stageBound bounds a step in which stage s, the only one of its worker, has units from i up to but
// not including j: by the first forward on the stages before, the stage's computations, and the last
// backward on the stages before. It never falls as j grows.
func (p *space) stageBound(s, i, j int) int64 {
	class := p.workers[p.place[s]].class
	fs, bs := p.forwards(class), p.sums[class].whole
	bound, after := int64(p.m)*(fs[j]-fs[i]+bs[j]-bs[i]), p.reduction(s, i, j)
	if s > 0 {
		class = p.fast[s-1]
		bound += p.forwards(class)[i] + p.link[s-1].transferTime(p.sent[i])
		back := p.backwards(class, 0, i) + p.link[s-1].transferTime(p.y[i])
		for _, h := range p.link[:s] {
			bound += int64(h.latency)
			back += int64(h.latency)
		}
		if !p.schedule.Split { // otherwise second parts of backwards may still follow
			after = max(after, back)
		}
	}
	return bound + after
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
func (p *space) likely() int64 {
	floor := p.floor()
	return floor + floor*int64(len(p.workers)-1)/int64(p.m*p.virtual)
}
