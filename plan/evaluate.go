package plan

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"time"

	"penstock.example/remat"
	"penstock.example/schedule"
)

// cachedDevice is the plan of a worker's stages.
type cachedDevice struct {
	times    []stageTimes // by stage; zero on other workers; nil if no plan fits
	capacity int          // of links; 0 is any number of values
}

// none is the cost of a cut that does not fit.
const none = math.MaxInt64 / 4

// kindsOf numbers the units of a space; units of equal costs have the same number unless the chain's
// units share memory.
func (p *space) kindsOf() (kinds []int) {
	type unit struct {
		layer    remat.Layer
		deferred remat.Deferred
		held     int64
	}
	known := map[unit]int{}
	for i, l := range p.chain.Layers {
		u := unit{layer: l, held: p.frozenBytes(i, i+1)}
		if u.layer.Name = ""; p.chain.Deferred != nil {
			u.deferred = p.chain.Deferred[i]
		}
		if _, ok := known[u]; !ok || p.sharesMemory() {
			known[u] = i
		}
		kinds = append(kinds, known[u])
	}
	return kinds
}

// simulationFor returns the simulation of a program that recomputes everything, for a capacity of
// links. What a plan does not recompute takes no time.
func (p *space) simulationFor(capacity int) (*schedule.Simulation, error) {
	if p.simulations[capacity] == nil {
		program, err := p.generate(schedule.Config{Stages: p.stages(), Worker: p.workerOf, MicroBatches: p.m,
			Capacity: capacity, Recompute: func(int, int) bool { return true }})
		if err != nil {
			return nil, err
		}
		if p.simulations[capacity], err = schedule.NewSimulation(program); err != nil {
			return nil, err
		}
	}
	return p.simulations[capacity], nil
}

// key is the same for stages with the same plan.
func (p *space) key(w int, c cut) string {
	key := binary.AppendVarint(nil, int64(w))
	for _, s := range p.stagesOf[w] {
		key = binary.AppendVarint(key, p.x[c[s]])
		key = binary.AppendVarint(key, p.y[c[s+1]])
		for _, k := range p.kinds[c[s]:c[s+1]] {
			key = binary.AppendVarint(key, int64(k))
		}
		key = binary.AppendVarint(key, -1)
	}
	return string(key)
}

// planDevice plans a worker's stages within its bytes by [Solve], and caches it by [space.key].
func (p *space) planDevice(ctx context.Context, w int, c cut) (*cachedDevice, error) {
	key := p.key(w, c)
	if known := p.cached[key]; known != nil {
		return known, nil
	}
	p.solved++
	out := &cachedDevice{}
	plan, err := Solve(ctx, p.deviceProblem(w, c))
	if short := (*MemoryError)(nil); errors.As(err, &short) {
		p.least[key] = short.Least()
	} else if err != nil {
		return nil, err
	} else {
		out.times, out.capacity = make([]stageTimes, p.stages()), plan.Program.Capacity
		for _, s := range p.stagesOf[w] {
			out.times[s] = p.plannedTimes(plan, s, c)
		}
	}
	p.cached[key] = out
	return out, nil
}

// leastLimit returns the least limit within which [Solve] plans a worker's stages.
func (p *space) leastLimit(ctx context.Context, w int, c cut) (int64, error) {
	key := p.key(w, c)
	if least, known := p.least[key]; known || p.workers[w].bytes == 0 {
		return least, nil
	}
	p.solved++
	problem := p.deviceProblem(w, c)
	problem.Devices[w].Limit = 1
	programs, err := problem.programs()
	if err != nil {
		return 0, err
	}
	_, short, err := problem.best(ctx, programs, true)
	if short != nil {
		p.least[key] = short.Least()
	}
	return p.least[key], err
}

// deviceProblem is the planning problem of a worker's stages alone.
func (p *space) deviceProblem(w int, c cut) Problem {
	problem := Problem{MicroBatches: p.m, Schedule: p.generate, First: true, curves: p.curves}
	for _, of := range p.workers {
		problem.Devices = append(problem.Devices, ProblemDevice{Name: of.name})
	}
	problem.Devices[w].Limit = p.workers[w].bytes
	for s := range p.stages() {
		stage := Stage{Device: p.workerOf[s], Layers: 1, Policy: Always}
		if p.workerOf[s] == w {
			stage = ChainStage(p.chain, c[s], c[s+1])
			stage.Device = w
			p.complete(&stage, s, c[s])
			if s == 0 {
				problem.Devices[w].Live = int64(p.m) * p.chain.Input
			}
		}
		problem.Stages = append(problem.Stages, stage)
	}
	return problem
}

// plannedTimes returns the times of stage s of a plan of a cut.
func (p *space) plannedTimes(plan *Plan, s int, c cut) stageTimes {
	t := p.times(s, c[s], c[s+1])
	for _, m := range plan.Stages[s].MicroBatches {
		t.each = append(t.each, microTimes{nanos(m.Forward, 1), nanos(m.Recompute, 1),
			nanos(m.Backward, 1) - t.second})
	}
	return t
}

// durations returns the times as a simulation needs them.
func durations(times []stageTimes) func(schedule.Action) time.Duration {
	return func(a schedule.Action) time.Duration {
		t := &times[a.Stage]
		m := microTimes{t.forward, t.recompute, t.backward}
		if t.each != nil {
			m = t.each[a.MicroBatch]
		}
		switch a.Kind {
		case schedule.Forward:
			return time.Duration(m.forward)
		case schedule.Recompute:
			return time.Duration(m.recompute)
		case schedule.Backward:
			return time.Duration(m.backward + t.second)
		case schedule.BackwardInput:
			return time.Duration(m.backward)
		case schedule.BackwardWeight:
			return time.Duration(t.second)
		case schedule.Reduce:
			return time.Duration(t.reduce)
		}
		return 0
	}
}

func (p *space) links(c cut) schedule.Links {
	if !slices.ContainsFunc(p.link, func(h Link) bool { return h != Link{} }) {
		return schedule.Links{}
	}
	forward, backward := make([]schedule.Transfer, len(p.link)), make([]schedule.Transfer, len(p.link))
	for s, h := range p.link {
		forward[s] = schedule.Transfer{Latency: h.Latency,
			Duration: time.Duration(h.transferTime(p.sent[c[s+1]]))}
		backward[s] = schedule.Transfer{Latency: h.Latency,
			Duration: time.Duration(h.transferTime(p.y[c[s+1]]))}
	}
	return schedule.Links{Cost: func(send schedule.Action) schedule.Transfer {
		if send.Kind == schedule.SendGradient {
			return backward[send.Peer]
		}
		return forward[send.Stage]
	}}
}

// wholeLimit is the share of a device that needs all of its limit.
const wholeLimit = 1 << 20

// share returns the greatest share of its limit that a device of a cut needs, in units of 1/wholeLimit.
// It does not depend on times. Devices are planned until the share exceeds most.
func (p *space) share(ctx context.Context, c cut, most int64) (share int64, err error) {
	share = p.leastShare(c)
	for w := 0; w < len(p.workers) && share <= most && err == nil; w++ {
		var least int64
		least, err = p.leastLimit(ctx, w, c)
		share = max(share, p.shareOf(w, least))
	}
	return share, err
}

// leastShare returns a lower bound of [space.share], for which no device is planned.
func (p *space) leastShare(c cut) (share int64) {
	for w := range p.workers {
		share = max(share, p.shareOf(w, p.leastBytes(w, c)))
	}
	return share
}

func (p *space) shareOf(w int, bytes int64) int64 {
	limit := p.workers[w].bytes
	if limit == 0 {
		return 0
	}
	return int64(min(math.Ceil(float64(bytes)/float64(limit)*wholeLimit), none))
}

// leastTimes returns the least times of a cut's stages, whatever is recomputed.
func (p *space) leastTimes(c cut) []stageTimes {
	times := p.plainTimes(c)
	for s := range times {
		least := p.forwards(p.workers[p.workerOf[s]].class)
		times[s].forward = least[c[s+1]] - least[c[s]]
	}
	return times
}

// evaluate returns the step of a cut, with recomputations under limits. If the step is not less than
// below, it returns math.MaxInt64. If the cut does not fit, it returns none plus the share of the limits.
// It plans one worker after the other, and stops once the step cannot be less than below.
func (p *space) evaluate(ctx context.Context, c cut, below int64) (int64, error) {
	p.work += p.simulation.Actions()
	times := p.leastTimes(c)
	simulation, step := p.simulation, p.simulate(c, times)
	if !p.limited {
		return step, nil
	}
	if below < none && step >= below { // whatever is recomputed
		return math.MaxInt64, nil
	}
	if share := p.leastShare(c); share > wholeLimit {
		return none + share, nil
	}
	for _, w := range p.knownFirst(c) {
		one, err := p.planDevice(ctx, w, c)
		if err != nil {
			return math.MaxInt64, err
		}
		if one.times == nil {
			share, err := p.share(ctx, c, none)
			return none + share, err
		}
		if one.capacity != 0 {
			if simulation, err = p.simulationFor(one.capacity); err != nil {
				return math.MaxInt64, err
			}
		}
		for _, s := range p.stagesOf[w] {
			times[s] = one.times[s]
		}
		step = int64(simulation.Run(durations(times), p.links(c), nil))
		if below < none && step >= below {
			return math.MaxInt64, nil
		}
	}
	return step, nil
}

// knownFirst lists the workers. Workers whose stages are planned already come first.
func (p *space) knownFirst(c cut) (list []int) {
	unknown := make([]int, len(p.workers))
	for w := range p.workers {
		if list = append(list, w); p.cached[p.key(w, c)] == nil {
			unknown[w] = 1
		}
	}
	slices.SortStableFunc(list, func(a, b int) int { return unknown[a] - unknown[b] })
	return list
}
