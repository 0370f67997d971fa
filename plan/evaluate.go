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
	times []stageTimes // by stage; zero on other workers
	wait  int          // the number of values that may wait on links; 0 is any
	need  int64        // the least limit that would do, if no plan fits
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

// simulationFor returns the simulation of the program for a capacity of links.
func (p *space) simulationFor(capacity int) (*schedule.Simulation, error) {
	if p.runs[capacity] == nil {
		program, err := p.generate(p.config(capacity))
		if err != nil {
			return nil, err
		}
		if p.runs[capacity], err = schedule.NewSimulation(program); err != nil {
			return nil, err
		}
	}
	return p.runs[capacity], nil
}

// key is the same for stages with the same plan.
func (p *space) key(w int, c cut) string {
	key := binary.AppendVarint(nil, int64(w))
	for _, s := range p.on[w] {
		key = binary.AppendVarint(key, p.x[c[s]])
		key = binary.AppendVarint(key, p.y[c[s+1]])
		for _, k := range p.kinds[c[s]:c[s+1]] {
			key = binary.AppendVarint(key, int64(k))
		}
		key = binary.AppendVarint(key, -1)
	}
	return string(key)
}

// planDevice plans a worker's stages within its bytes, by [Solve] in the order of the program, once for
// units of equal costs.
func (p *space) planDevice(ctx context.Context, w int, c cut) (*cachedDevice, error) {
	key := p.key(w, c)
	if known := p.cells[key]; known != nil {
		return known, nil
	}
	p.solved++
	out := &cachedDevice{times: make([]stageTimes, p.stages())}
	plan, err := Solve(ctx, p.deviceProblem(w, c))
	var short *MemoryError
	switch {
	case errors.As(err, &short):
		out.need = short.Least()
	case err != nil:
		return nil, err
	default:
		out.wait = plan.Program.Capacity
		for _, s := range p.on[w] {
			out.times[s] = p.plannedTimes(plan, s, c)
		}
	}
	p.cells[key] = out
	return out, nil
}

// deviceProblem is the planning problem of a worker's stages alone.
func (p *space) deviceProblem(w int, c cut) Problem {
	problem := Problem{MicroBatches: p.m, Schedule: p.generate, First: true, curves: p.curves}
	for _, of := range p.workers {
		problem.Devices = append(problem.Devices, ProblemDevice{Name: of.name})
	}
	problem.Devices[w].Limit = p.workers[w].bytes
	for s := range p.stages() {
		stage := Stage{Device: p.place[s], Layers: 1, Policy: Always}
		if p.place[s] == w {
			stage = ChainStage(p.chain, c[s], c[s+1])
			stage.Device = w
			p.finish(&stage, s, c[s])
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

// durations returns the times as a Simulation needs them.
func durations(times []stageTimes) func(schedule.Action) time.Duration {
	return func(a schedule.Action) time.Duration {
		t := &times[a.Stage]
		forward, recompute, backward := t.forward, t.recompute, t.backward
		if t.each != nil {
			forward, recompute, backward = t.each[a.MicroBatch].forward, t.each[a.MicroBatch].recompute,
				t.each[a.MicroBatch].backward
		}
		switch a.Kind {
		case schedule.Forward:
			return time.Duration(forward)
		case schedule.Recompute:
			return time.Duration(recompute)
		case schedule.Backward:
			return time.Duration(backward + t.second)
		case schedule.BackwardInput:
			return time.Duration(backward)
		case schedule.BackwardWeight:
			return time.Duration(t.second)
		case schedule.Reduce:
			return time.Duration(t.reduce)
		}
		return 0
	}
}

func (p *space) links(c cut) schedule.Links {
	if !slices.ContainsFunc(p.link, func(h linkCost) bool { return h != linkCost{} }) {
		return schedule.Links{}
	}
	forward, backward := make([]schedule.Transfer, len(p.link)), make([]schedule.Transfer, len(p.link))
	for s, h := range p.link {
		forward[s] = schedule.Transfer{Latency: h.latency,
			Bytes: time.Duration(h.transferTime(p.sent[c[s+1]]))}
		backward[s] = schedule.Transfer{Latency: h.latency, Bytes: time.Duration(h.transferTime(p.y[c[s+1]]))}
	}
	return schedule.Links{Cost: func(send schedule.Action) schedule.Transfer {
		if send.Kind == schedule.SendGradient {
			return backward[send.Peer]
		}
		return forward[send.Stage]
	}}
}

// wholeLimit is the part of a device that needs all of its limit.
const wholeLimit = 1 << 20

// evaluate returns the step of a cut, with recomputations under limits. For a cut that does not fit it
// returns none and the part of the limit that its fullest device needs, in units of 1/wholeLimit. If
// even its least bytes do not fit, nothing is planned, and the part of these counts 1000 times.
func (p *space) evaluate(ctx context.Context, c cut) (int64, error) {
	p.work += p.simulation.Actions()
	if !p.limited {
		return p.plain(c), nil
	}
	part := int64(0)
	partOf := func(w int, bytes int64) {
		if limit := p.workers[w].bytes; limit > 0 {
			part = max(part, int64(min(math.Ceil(float64(bytes)/float64(limit)*wholeLimit), none/1000)))
		}
	}
	for w := range p.workers {
		partOf(w, p.leastBytes(w, c))
	}
	if part > wholeLimit {
		return none + 1000*part, nil
	}
	times, capacity := make([]stageTimes, p.stages()), 0
	for w := range p.workers {
		one, err := p.planDevice(ctx, w, c)
		if err != nil {
			return math.MaxInt64, err
		}
		if partOf(w, one.need); one.wait != 0 {
			capacity = one.wait
		}
		for _, s := range p.on[w] {
			times[s] = one.times[s]
		}
	}
	if part > wholeLimit {
		return none + part, nil
	}
	on, err := p.simulationFor(capacity)
	if err != nil {
		return math.MaxInt64, err
	}
	return int64(on.Run(durations(times), p.links(c), nil)), nil
}
