package plan

import (
	"fmt"
	"math"
	"slices"

	"penstock.example/remat"
	"penstock.example/schedule"
)

// space is all cuts of a model for one schedule and one number of devices, stages, micro-batches,
// threads and replicas. Times are nanoseconds.
type space struct {
	options  Options
	schedule schedule.Schedule
	chain    remat.Chain // all micro-batches alike
	rows     int
	threads  int
	virtual  int
	m        int // micro-batches
	replicas int
	units    int
	workers  []worker
	workerOf []int   // by stage
	stagesOf [][]int // by worker
	limited  bool

	link    []Link // by stage: to the next; free on one worker
	sums    []sums
	fastest []int   // by stage: the class of the fastest worker up to it
	x, y    []int64 // by boundary: bytes of the input there, and of its gradient
	sent    []int64 // by boundary: bytes that a cut there sends forward
	weights []int64 // by boundary: bytes of the weight gradients of the units before it
	held    []int64 // by unit: frozen bytes; nil is none

	simulation *schedule.Simulation
	work       int // how many actions were simulated

	// Under limits:
	kinds       []int                        // of units; see kindsOf
	cached      map[string]*cachedDevice     // by key
	simulations map[int]*schedule.Simulation // by capacity of links
	least       map[string]int64             // least limits, by key
	solved      int                          // how many devices were planned
	curves      map[string]*curve
}

// worker is a device of the machine in the pipeline, or a part of one.
type worker struct {
	name   string
	device string  // of the machine
	bytes  int64   // 0 is no limit
	speed  float64 // relative to the measured device
	class  int     // an index into sums
	reduce Link    // the slowest link between replicas
}

// sums are prefix sums of the times of units at one speed: forwards, the shorter of forwards with
// and without gradients, and backwards, whole and second part. The last forward includes the loss.
type sums struct{ forward, least, whole, second []int64 }

func newSums(c remat.Chain, speed float64) sums {
	n := len(c.Layers)
	s := sums{forward: make([]int64, n+1), least: make([]int64, n+1), whole: make([]int64, n+1),
		second: make([]int64, n+1)}
	for i, l := range c.Layers {
		forward := nanos(l.Forward, speed)
		s.forward[i+1] = s.forward[i] + forward
		s.least[i+1] = s.least[i] + min(forward, nanos(l.ForwardNoGrad, speed))
		s.whole[i+1] = s.whole[i] + nanos(l.Backward, speed)
		s.second[i+1] = s.second[i] + nanos(c.Second(i), speed)
	}
	loss := nanos(c.Loss.Backward, speed)
	s.forward[n] += loss
	s.least[n] += loss
	return s
}

// nanos converts microseconds at speed 1 to nanoseconds at a speed.
func nanos(micros, speed float64) int64 {
	return int64(math.Round(micros * 1000 / speed))
}

// newSpace makes the space of a profile's costs on workers, each with virtual stages.
func newSpace(w Options, s schedule.Schedule, costs Costs, virtual, m, replicas int,
	workers []worker, link func(a, b worker) Link) (*space, error) {
	c := averaged(costs.Chain, m)
	if s.Split {
		c = c.InParts()
	}
	workerOf, err := s.Workers(len(workers), virtual)
	if err != nil {
		return nil, err
	}
	if len(workerOf) > len(c.Layers) {
		return nil, fmt.Errorf("%d stages are more than %d units", len(workerOf), len(c.Layers))
	}
	p := &space{options: w, schedule: s, chain: c, rows: costs.Rows, threads: costs.threads(),
		held: costs.Held, virtual: virtual, m: m, replicas: replicas, units: len(c.Layers),
		workers: slices.Clone(workers), workerOf: workerOf, stagesOf: make([][]int, len(workers))}
	var speeds []float64
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
	for s, w := range workerOf[1:] {
		h := Link{}
		if from := workerOf[s]; from != w {
			h = link(p.workers[from], p.workers[w])
		}
		p.link = append(p.link, h)
	}
	for s, w := range workerOf {
		p.stagesOf[w] = append(p.stagesOf[w], s)
		class := p.workers[w].class
		if s > 0 && speeds[class] < speeds[p.fastest[s-1]] {
			class = p.fastest[s-1]
		}
		p.fastest = append(p.fastest, class)
	}
	if p.setBoundaryBytes(); costs.Sent != nil {
		p.sent = costs.Sent
	}
	return p, nil
}

func (p *space) setBoundaryBytes() {
	n := len(p.chain.Layers)
	p.x, p.y, p.weights = make([]int64, n+1), make([]int64, n+1), make([]int64, n+1)
	for i := range n {
		part := p.chain.Part(i, i+1)
		p.weights[i+1] = p.weights[i] + p.chain.Layers[i].WeightGradient
		p.x[i], p.y[i+1] = part.Input, part.Layers[0].Gradient
	}
	p.sent = p.x
}

// frozenBytes returns the bytes that units from first up to but not including last hold without
// gradients.
func (p *space) frozenBytes(first, last int) (bytes int64) {
	for i := first; i < min(last, len(p.held)); i++ {
		bytes += p.held[i]
	}
	return bytes
}

// prepare makes the simulation, which [space.floor] does not need.
func (p *space) prepare() (err error) {
	p.simulations = map[int]*schedule.Simulation{}
	if p.simulation, err = p.simulationFor(0); p.limited && err == nil {
		p.kinds, p.cached, p.least = p.kindsOf(), map[string]*cachedDevice{}, map[string]int64{}
		p.curves = map[string]*curve{}
	}
	return err
}

func (p *space) stages() int { return len(p.workerOf) }

// generate makes a program, with reductions if the pipeline has replicas.
func (p *space) generate(c schedule.Config) (*schedule.Program, error) {
	program, err := p.schedule.Generate(c)
	if err == nil && p.replicas > 1 {
		program = schedule.AddReduce(program)
	}
	return program, err
}

// stageTimes is the durations of a stage's actions. If each is not nil it has those that differ between
// micro-batches.
type stageTimes struct {
	forward, recompute, backward, second int64
	each                                 []microTimes
	reduce                               int64
}

type microTimes struct{ forward, recompute, backward int64 }

// times returns the times of stage s with units from i up to but not including j, without
// recomputation. If the schedule splits backwards, backward is the first part.
func (p *space) times(s, i, j int) stageTimes {
	a := &p.sums[p.workers[p.workerOf[s]].class]
	t := stageTimes{forward: a.forward[j] - a.forward[i], backward: a.whole[j] - a.whole[i]}
	if p.schedule.Split {
		t.second = a.second[j] - a.second[i]
		t.backward -= t.second
	}
	t.reduce = p.reduction(s, i, j)
	return t
}

// reduction returns the time to sum the gradients of a stage over replicas: they go from the first
// rank to the last, and the sum goes back.
func (p *space) reduction(s, i, j int) int64 {
	if p.replicas == 1 {
		return 0
	}
	h := p.workers[p.workerOf[s]].reduce
	return 2 * (int64(p.replicas-1)*int64(h.Latency) + h.transferTime(p.weights[j]-p.weights[i]))
}

// cut is the first unit of each stage, and at the end the number of units.
type cut []int

func (c cut) counts() (list []int) {
	for s := range c[1:] {
		list = append(list, c[s+1]-c[s])
	}
	return list
}

// simulate returns the time of a step with these times of stages, on links that hold any number of
// values.
func (p *space) simulate(c cut, times []stageTimes) int64 {
	return int64(p.simulation.Run(durations(times), p.links(c), nil))
}

// plainTimes returns the times of a cut's stages without recomputation.
func (p *space) plainTimes(c cut) (list []stageTimes) {
	for s := range p.stages() {
		list = append(list, p.times(s, c[s], c[s+1]))
	}
	return list
}

// problem is the planning problem of a cut.
func (p *space) problem(c cut) Problem {
	out := FromChain(p.chain, c.counts(), p.workerOf, p.m)
	out.Schedule = p.generate
	for w := range out.Devices {
		out.Devices[w].Name, out.Devices[w].Limit = p.workers[w].name, p.workers[w].bytes
	}
	out.Links = p.links(c)
	for s := range out.Stages {
		p.complete(&out.Stages[s], s, c[s])
	}
	return out
}

// complete gives a stage, which begins with unit first, the times of its worker, and memory that its
// chain does not have.
func (p *space) complete(s *Stage, number, first int) {
	speed := p.workers[p.workerOf[number]].speed
	// whole nanoseconds, so that sums are exact
	round := func(micros float64) float64 { return float64(nanos(micros, speed)) / 1000 }
	for i := range s.Costs.Times {
		t := &s.Costs.Times[i]
		*t = remat.UnitTimes{Name: t.Name, Forward: round(t.Forward), ForwardNoGrad: round(t.ForwardNoGrad),
			Backward: round(t.Backward), Later: round(t.Later)}
	}
	s.Costs.Loss = round(s.Costs.Loss)
	s.Memory.State = int64(p.options.State) * s.Memory.Unplaced
	s.Memory.Unplaced += p.frozenBytes(first, first+s.Layers)
	if p.replicas > 1 {
		for _, l := range p.chain.Layers[first : first+s.Layers] {
			s.Memory.Reduction = max(s.Memory.Reduction, l.WeightGradient)
		}
	}
}
