package search

import (
	"fmt"
	"math"
	"slices"

	"penstock.example/planner"
	"penstock.example/remat"
	"penstock.example/schedule"
)

// space is all cuts of a model for one schedule, number of devices and stages, micro-batches, threads
// and replicas. Times are nanoseconds.
type space struct {
	wishes   Wishes
	schedule schedule.Schedule
	chain    remat.Chain // all micro-batches alike
	rows     int
	threads  int
	virtual  int
	m        int // micro-batches
	replicas int
	units    int
	workers  []worker
	place    []int // by stage: its worker
	limited  bool

	link []hop // by stage: to the next; nothing on one worker
	sums []sums
	fast []int // by worker: of the classes of speed before and after, the fastest: see before
	slow []int
	x, y []int64 // by border: bytes of the input there, and of its gradient
	sent []int64 // by border: bytes that a cut there sends forward
	held []int64 // by unit: bytes that are there without a gradient; nil is none

	weights []int64 // by border: bytes of the gradients of the weights in front of it

	program    *schedule.Program
	simulation *schedule.Simulation
	order      []order // by worker
	oracle     *oracle // under limits
	work       int     // actions that were simulated

	bounding bounding
}

// worker is what a device of the machine, or a part of it, has for the pipeline.
type worker struct {
	name   string
	device string  // of the machine
	bytes  int64   // 0 is no limit
	speed  float64 // beside what was measured
	class  int     // an index into sums
	reduce hop     // of the replicas' links the slowest
}

// sums are prefix sums of units' times at one speed: forward with gradients, the least of forwards, and
// backward with its second part.
type sums struct {
	unit                          []unitTimes
	forward, least, whole, second []int64
}

// unitTimes are a unit's times. A loss is done by the forward of the last stage.
type unitTimes struct{ forward, noGrad, backward, second int64 }

// newSums are those of a chain on a device of some speed.
func newSums(c remat.Chain, speed float64) sums {
	n := len(c.Layers)
	s := sums{forward: make([]int64, n+1), least: make([]int64, n+1), whole: make([]int64, n+1), second: make([]int64, n+1)}
	for i, l := range c.Layers {
		u := unitTimes{nanos(l.Forward, speed), nanos(l.ForwardNoGrad, speed), nanos(l.Backward, speed), nanos(c.Second(i), speed)}
		s.unit = append(s.unit, u)
		s.forward[i+1], s.least[i+1] = s.forward[i]+u.forward, s.least[i]+min(u.forward, u.noGrad)
		s.whole[i+1], s.second[i+1] = s.whole[i]+u.backward, s.second[i]+u.second
	}
	loss := nanos(c.Loss.Backward, speed)
	s.forward[n] += loss
	s.least[n] += loss
	return s
}

// nanos is microseconds at a speed.
func nanos(micros, speed float64) int64 {
	return int64(math.Round(micros * 1000 / speed))
}

// newSpace makes the space of a chain on workers, each for as many stages.
func newSpace(w Wishes, s schedule.Schedule, c remat.Chain, virtual, m, replicas int, workers []worker, link func(a, b worker) hop) (*space, error) {
	if c = meanOf(c, m); s.Split {
		c = c.InParts()
	}
	place, err := s.Workers(len(workers), virtual)
	if err != nil {
		return nil, err
	}
	if len(place) > len(c.Layers) {
		return nil, fmt.Errorf("%d stages are more than %d units", len(place), len(c.Layers))
	}
	p := &space{wishes: w, schedule: s, chain: c, virtual: virtual, m: m, replicas: replicas, units: len(c.Layers), workers: slices.Clone(workers), place: place}
	speeds := []float64{}
	for i := range p.workers {
		at := slices.Index(speeds, p.workers[i].speed)
		if at < 0 {
			at = len(speeds)
			speeds = append(speeds, p.workers[i].speed)
			p.sums = append(p.sums, newSums(c, p.workers[i].speed))
		}
		p.workers[i].class = at
		p.limited = p.limited || p.workers[i].bytes > 0
	}
	for s := range place[1:] {
		h := hop{}
		if place[s] != place[s+1] {
			h = link(p.workers[place[s]], p.workers[place[s+1]])
		}
		p.link = append(p.link, h)
	}
	p.fast, p.slow = make([]int, len(place)), make([]int, len(place))
	best := func(a, b int) int {
		if speeds[b] > speeds[a] {
			return b
		}
		return a
	}
	for s := range place {
		p.fast[s], p.slow[len(place)-1-s] = p.workers[place[s]].class, p.workers[place[len(place)-1-s]].class
		if s > 0 {
			p.fast[s], p.slow[len(place)-1-s] = best(p.fast[s-1], p.fast[s]), best(p.slow[len(place)-s], p.slow[len(place)-1-s])
		}
	}
	p.x, p.y, p.weights = make([]int64, p.units+1), make([]int64, p.units+1), make([]int64, p.units+1)
	for i := range p.units {
		part := c.Part(i, i+1)
		p.weights[i+1] = p.weights[i] + c.Layers[i].WeightGradient
		p.x[i], p.y[i+1] = part.Input, part.Layers[0].Gradient
	}
	p.sent = p.x
	return p, nil
}

// measure gives the space what was measured beside its chain.
func (p *space) measure(m Measured) {
	p.rows, p.threads, p.held = m.Rows, m.threads(), m.Held
	if m.Sent != nil {
		p.sent = m.Sent
	}
}

// holds is what units from first up to but not including last hold without a gradient.
func (p *space) holds(first, last int) (bytes int64) {
	if p.held == nil {
		return 0
	}
	for _, n := range p.held[first:last] {
		bytes += n
	}
	return bytes
}

// prepare makes the program, which [space.floor] does without. As planner.Solve does, it has a recomputation
// of everything, which takes no time where nothing is recomputed.
func (p *space) prepare() error {
	var err error
	if p.program, err = p.generate(schedule.Config{Stages: p.stages(), Worker: p.place, MicroBatches: p.m, Recompute: func(int, int) bool { return true }}); err != nil {
		return err
	}
	if p.simulation, err = schedule.NewSimulation(p.program); err != nil {
		return err
	}
	for w := range p.workers {
		p.order = append(p.order, p.newOrder(w))
	}
	if p.limited {
		p.oracle = newOracle(p)
	}
	return nil
}

// stages is the number of stages.
func (p *space) stages() int { return len(p.place) }

// generate makes the program, with reductions where there are replicas.
func (p *space) generate(c schedule.Config) (*schedule.Program, error) {
	program, err := p.schedule.Generate(c)
	if err == nil && p.replicas > 1 {
		program = schedule.AddReduce(program)
	}
	return program, err
}

// of are the sums of a stage's worker.
func (p *space) of(stage int) *sums { return &p.sums[p.workers[p.place[stage]].class] }

// stageTimes is what the actions of a stage take on each micro-batch: of all micro-batches the same
// where each is nil.
type stageTimes struct {
	forward, recompute, backward, second int64
	each                                 []microTimes
	reduce                               int64
}

type microTimes struct{ forward, recompute, backward int64 }

// times are those of stage s with units from i up to but not including j, if nothing is recomputed.
// Backward is without its second part where the schedule splits backwards, as a whole one takes both.
func (p *space) times(s, i, j int) stageTimes {
	a := p.of(s)
	t := stageTimes{forward: a.forward[j] - a.forward[i], backward: a.whole[j] - a.whole[i]}
	if p.schedule.Split {
		t.second = a.second[j] - a.second[i]
		t.backward -= t.second
	}
	t.reduce = p.reduction(s, i, j)
	return t
}

// reduction is what it takes to sum the gradients of a stage over replicas in the order of their ranks:
// they go from the first to the last, and the sum goes back.
func (p *space) reduction(s, i, j int) int64 {
	if p.replicas == 1 {
		return 0
	}
	h := p.workers[p.place[s]].reduce
	return 2 * (int64(p.replicas-1)*int64(h.latency) + h.takes(p.weights[j]-p.weights[i]))
}

// cut is the first unit of each stage, and the number of units.
type cut []int

// counts are the units of each stage.
func (c cut) counts() (list []int) {
	for s := range c[1:] {
		list = append(list, c[s+1]-c[s])
	}
	return list
}

// cutOf is the cut with so many units a stage.
func cutOf(counts []int) cut {
	c := cut{0}
	for _, n := range counts {
		c = append(c, c[len(c)-1]+n)
	}
	return c
}

// simulate returns the time of a step with these times of stages on links of any capacity.
func (p *space) simulate(c cut, times []stageTimes) int64 {
	return int64(p.simulation.Run(durations(times), p.links(c), nil))
}

// plain simulates a cut without recomputation.
func (p *space) plain(c cut) int64 {
	times := make([]stageTimes, p.stages())
	for s := range times {
		times[s] = p.times(s, c[s], c[s+1])
	}
	return p.simulate(c, times)
}

// problem is a cut as planner.Solve takes it.
func (p *space) problem(c cut) planner.Problem {
	out := planner.FromChain(p.chain, c.counts(), p.place, p.m)
	out.Schedule = p.generate
	for w := range out.Devices {
		out.Devices[w].Name, out.Devices[w].Limit = p.workers[w].name, p.workers[w].bytes
	}
	for s := range out.Stages {
		p.finish(&out.Stages[s], c[s])
	}
	return out
}

// finish says of a stage, whose first unit is given, what its chain does not.
func (p *space) finish(s *planner.Stage, first int) {
	s.Memory.State = int64(p.wishes.State) * s.Memory.Unplaced
	s.Memory.Unplaced += p.holds(first, first+s.Layers)
	if p.replicas > 1 {
		for _, l := range s.Costs.First.Layers {
			s.Memory.Reduction = max(s.Memory.Reduction, l.WeightGradient)
		}
	}
}
