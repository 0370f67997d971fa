package plan

import (
	"cmp"
	"context"
	"math"
	"math/rand/v2"
	"slices"

	"penstock.example/remat"
)

// found is the result of the search in a space.
type found struct {
	cut   cut   // the best; nil if none is below the step known before
	step  int64 // its time; see evaluate for a cut that does not fit
	bound int64 // no cut of the space takes less; at most the step known before
}

func (f found) fits() bool { return f.cut != nil && f.step < none }

// best searches the space for a cut with a step below known, the step of another space's plan, or none.
// It climbs from several cuts, and looks at all cuts if they are few. Once it has a plan it only looks
// for steps below rival, the step of another schedule's plan. If no plan is known and no cut fits, it
// returns the cut that lacks the smallest share of a limit. This share, and which cuts fit, do not
// depend on times.
func (p *space) best(ctx context.Context, known, rival int64) (found, error) {
	f := &finder{p: p, ctx: ctx, rival: rival, plans: p.options.plans(),
		found: found{step: known, bound: p.floor()}}
	f.value = func(c cut) (int64, error) { return p.evaluate(ctx, c, f.goal()) }
	f.least = func(c cut) int64 { return p.simulate(c, p.leastTimes(c)) }
	if known == none {
		f.step = math.MaxInt64
	}
	starts := []cut{p.evenCut(func(l remat.Layer) float64 { return l.Forward + l.Backward + 1e-9 })}
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
		starts = append(starts, p.evenCut(func(l remat.Layer) float64 {
			return float64(l.Saved + 2*l.WeightGradient + 1)
		}))
		if known == none {
			light := &finder{p: p, ctx: ctx, plans: min(f.plans, max(100, f.plans/4)),
				found: found{step: math.MaxInt64, bound: wholeLimit}}
			light.value = func(c cut) (int64, error) { return p.share(ctx, c, light.step-1) }
			light.least = p.leastShare
			triedAll := light.find(starts[len(starts)-1:])
			if light.err != nil || light.step > wholeLimit {
				if triedAll {
					f.bound = none
				}
				return found{cut: light.cut, step: none + light.step, bound: f.bound}, light.err
			}
			starts, p.solved = append(starts, light.cut), 0
		}
	}
	if f.find(starts) {
		f.bound = f.goal()
	}
	f.bound = min(f.bound, f.goal(), none)
	return f.found, f.err
}

// find climbs from cuts, and reports whether it has tried all cuts of the space.
func (f *finder) find(starts []cut) (triedAll bool) {
	p := f.p
	for _, c := range starts {
		f.try(c)
	}
	f.climb(f.cut)
	r := rand.New(rand.NewPCG(1, 2))
	for range kicks {
		if f.cut == nil || f.exhausted() || f.step <= f.bound || p.stages() == 1 {
			break
		}
		c := slices.Clone(f.cut)
		for range 3 {
			s := 1 + r.IntN(p.stages()-1)
			c[s] = c[s-1] + 1 + r.IntN(c[s+1]-c[s-1]-1)
		}
		f.climb(c)
	}
	if p.cuts() < fewCuts && f.step > f.bound {
		f.every(make(cut, 1, p.stages()+1))
		triedAll = !f.exhausted()
	}
	if f.err == nil {
		f.err = f.ctx.Err()
	}
	return triedAll
}

// kicks is the number of random cuts that a search climbs from. Fewer cuts than fewCuts are all tried.
const kicks, fewCuts = 60, 4000

type finder struct {
	found
	p     *space
	ctx   context.Context
	rival int64
	plans int                        // the most devices that are planned
	value func(c cut) (int64, error) // of a cut; the search minimizes it, as found.step
	least func(c cut) int64          // a lower bound of value, for which no device is planned
	err   error
}

// goal returns the step that a cut has to beat: the least known one. Under limits the step of another
// schedule's plan counts, too, once a plan of this schedule is known.
func (f *finder) goal() int64 {
	if f.p.limited && f.step < none {
		return min(f.step, f.rival)
	}
	return f.step
}

// try evaluates a cut and returns its value.
func (f *finder) try(c cut) int64 {
	took, err := f.value(c)
	if f.err = err; err == nil && took < f.step {
		f.step, f.cut = took, slices.Clone(c)
	}
	return took
}

// exhausted reports whether the search ends before all cuts were looked at.
func (f *finder) exhausted() bool {
	p := f.p
	most := max(4_000_000, 1000*p.simulation.Actions())
	return p.work >= most || p.limited && p.solved >= f.plans || f.step <= f.bound ||
		f.err != nil || f.ctx.Err() != nil
}

// climb moves units of a cut from one stage to another, through the stages between, as long as that
// shortens the step.
func (f *finder) climb(c cut) {
	if c == nil {
		return
	}
	step, moves := f.try(c), f.p.moves()
	for again := true; again; {
		again = false
		sorted := f.sort(moves, c)
		for _, m := range moves {
			next := m.apply(c)
			if next == nil {
				continue
			}
			if f.exhausted() {
				return
			}
			if took := f.try(next); took < step {
				c, step, again = next, took, true
				if sorted {
					break
				}
			}
		}
	}
}

// move adds units, which may be negative, to the first unit of each stage from first to last.
type move struct{ first, last, units int }

// moves lists the moves of a climb, those of most units first.
func (p *space) moves() (list []move) {
	stages := p.stages()
	for far := max(1, p.units/stages/2); far > 0; far /= 2 {
		for width := range stages - 1 {
			for s := 1; s+width < stages; s++ {
				list = append(list, move{s, s + width, far}, move{s, s + width, -far})
			}
		}
	}
	return list
}

// apply returns a cut after a move; nil if a stage would have no units.
func (m move) apply(c cut) cut {
	c = slices.Clone(c)
	for s := m.first; s <= m.last; s++ {
		c[s] += m.units
	}
	if c[m.first] <= c[m.first-1] || c[m.last] >= c[m.last+1] {
		return nil
	}
	return c
}

// sort sorts the moves of a cut under limits, so that the first ones lead to the likeliest cuts.
// It reports false, and changes nothing, if the bounds of so many cuts take too long.
func (f *finder) sort(moves []move, c cut) bool {
	if !f.p.limited || len(moves)*f.p.simulation.Actions() > 1_000_000 {
		return false
	}
	bounds := map[move]int64{}
	for _, m := range moves {
		if next := m.apply(c); next != nil {
			bounds[m] = f.least(next)
		}
	}
	slices.SortStableFunc(moves, func(a, b move) int { return cmp.Compare(bounds[a], bounds[b]) })
	return true
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

// evenCut returns the cut of evenly balanced costs.
func (p *space) evenCut(cost func(l remat.Layer) float64) cut {
	var costs []float64
	for _, l := range p.chain.Layers {
		costs = append(costs, cost(l))
	}
	counts, _ := Partition(costs, p.stages())
	c := cut{0}
	for _, n := range counts {
		c = append(c, c[len(c)-1]+n)
	}
	return c
}

// cutByBound returns the cut whose greatest [space.stageBound] is least, and that bound, if each worker
// has one stage. It returns no cut if none may fit. By dynamic programming over units from i on:
//
//	least(s, i) = min over j of max(stageBound(s, i, j), least(s+1, j))
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
				limit := p.workers[p.workerOf[s]].bytes
				if b >= now[i] || limit > 0 && leastBytesOf([]needs{need}, p.options.State) > limit {
					break // longer stages have as great a bound, and need as many bytes
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

// forwards returns prefix sums of the least times of forwards on a class of workers.
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

// stageBound is a lower bound of a step in which stage s, the only one of its worker, has units from i
// up to but not including j: the first forward on the stages before, the stage's computations, and the
// last backward on the stages before. It never falls as j grows.
func (p *space) stageBound(s, i, j int) int64 {
	class := p.workers[p.workerOf[s]].class
	fs, bs := p.forwards(class), p.sums[class].whole
	bound, after := int64(p.m)*(fs[j]-fs[i]+bs[j]-bs[i]), p.reduction(s, i, j)
	if s > 0 {
		class = p.fastest[s-1]
		bound += p.forwards(class)[i] + p.link[s-1].transferTime(p.sent[i])
		back := p.backwards(class, 0, i) + p.link[s-1].transferTime(p.y[i])
		for _, h := range p.link[:s] {
			bound += int64(h.Latency)
			back += int64(h.Latency)
		}
		if !p.schedule.Split { // otherwise second parts of backwards may still follow
			after = max(after, back)
		}
	}
	return bound + after
}

// floor returns the greatest of three lower bounds of any cut's step: the workers' mean load, with
// waits for earlier stages; a micro-batch's computations; the longest unit on all micro-batches.
func (p *space) floor() int64 {
	a := &p.sums[p.fastest[p.stages()-1]]
	f := p.forwards(p.fastest[p.stages()-1])
	sum := int64(p.m) * (f[p.units] + a.whole[p.units])
	for w := range p.workers {
		sum += f[w] // each stage before has at least a unit
		if !p.schedule.Split {
			sum += a.whole[w]
		}
	}
	out := (sum + int64(len(p.workers)) - 1) / int64(len(p.workers))
	for i := range p.units {
		out = max(out, int64(p.m)*(f[i+1]-f[i]+a.whole[i+1]-a.whole[i]))
	}
	return max(out, f[p.units]+p.backwards(p.fastest[p.stages()-1], 0, p.units))
}

// likely estimates a step: its floor, and the idle time while the pipeline fills and drains.
func (p *space) likely() int64 {
	floor := p.floor()
	return floor + floor*int64(len(p.workers)-1)/int64(p.m*p.virtual)
}
