package planner

import (
	"context"
	"fmt"
	"slices"

	"penstock.example/internal/arg"
	"penstock.example/remat"
	"penstock.example/remat/solver"
	"penstock.example/schedule"
)

// Solve plans a step. It blocks until the plan is made or ctx ends. It fails with a [*MemoryError]
// if no plan of some device keeps its limit, with ctx.Err() when ctx ends first, with an
// [*arg.ConfigError] for a wrong field of the problem, or with an error of the program that the
// problem's schedule makes.
//
// The program is made first, with a recomputation of everything that may be recomputed. Its order
// decides which micro-batches are in flight together on a device, and which values wait on links.
// Each device is planned in that order. Recomputations that the plan does not need are taken out of
// the program.
//
// Under a limit Solve makes two plans: for links on which any number of values may wait, so that
// stages hardly wait for each other, and for links on which nothing waits, which needs fewer bytes. It
// returns the plan with the shorter step.
func Solve(ctx context.Context, p Problem) (*Plan, error) {
	out, err := SolveFirst(ctx, p)
	if err != nil || p.Meet || !p.limited() {
		return out, err
	}
	p.Meet = true
	other, err := SolveFirst(ctx, p)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err == nil && other.Step() < out.Step():
		return other, nil
	}
	return out, nil
}

// SolveFirst is [Solve] in half the time. Devices that do not keep their limits if any number of
// values may wait on links are planned for links on which nothing waits, and all devices run that
// program then. Its plan is seldom worse.
func SolveFirst(ctx context.Context, p Problem) (*Plan, error) {
	if err := arg.Context(ctx, "planner"); err != nil {
		return nil, err
	}
	if err := p.check(); err != nil {
		return nil, err
	}
	programs, err := p.programs()
	if err != nil {
		return nil, err
	}
	return p.plan(ctx, programs)
}

func (p Problem) limited() bool {
	return slices.ContainsFunc(p.Stages,
		func(s Stage) bool { return s.Policy == Optimal && p.Devices[s.Device].Limit > 0 })
}

// orderedProgram is a program with its dependencies.
type orderedProgram struct {
	*schedule.Program
	graph  *schedule.Graph
	latest []int // see schedule.Graph.LatestReceives
}

func newOrderedProgram(p *schedule.Program) orderedProgram {
	g := p.Graph()
	return orderedProgram{p, g, g.LatestReceives()}
}

// plan plans a step in the order of one of several programs, which recompute all that may be
// recomputed: the first program in which each device keeps its limit.
func (p Problem) plan(ctx context.Context, programs []*schedule.Program) (*Plan, error) {
	out := &Plan{Program: programs[0], skips: withGradientOffsets(p.Skips), ties: p.Ties}
	for _, d := range p.Devices {
		out.Devices = append(out.Devices, DevicePlan{Name: d.Name})
	}
	for i, s := range p.Stages {
		out.Stages = append(out.Stages, p.stage(i, s))
	}
	views, chosen := make([]orderedProgram, len(programs)), 0
	views[0] = newOrderedProgram(programs[0])
	var short []Shortage
	within := func(device, from int) error {
		for k := from; ; k++ {
			if views[k].Program == nil {
				views[k] = newOrderedProgram(programs[k])
			}
			lack, err := p.device(ctx, out, device, views[k])
			switch {
			case err != nil:
				return fmt.Errorf("planner: device %s: %w", p.Devices[device].Name, err)
			case lack == nil:
				chosen = max(chosen, k)
				return nil
			case k == len(programs)-1:
				short = append(short, *lack)
				return nil
			}
		}
	}
	for i := range p.Devices {
		if err := within(i, 0); err != nil {
			return nil, err
		}
	}
	for {
		if short != nil {
			return nil, &MemoryError{short}
		}
		out.Program = programs[chosen].Without(func(a schedule.Action) bool { return !out.recomputes(a.Stage, a.MicroBatch) })
		if err := schedule.Check(out.Program, schedule.Limits{}); err != nil {
			return nil, fmt.Errorf("planner: %w", err)
		}
		out.predictPeaks()
		above := slices.IndexFunc(out.Devices,
			func(d DevicePlan) bool { return d.Limit > 0 && d.Peak > d.Limit })
		if above < 0 || chosen == 0 {
			return out, nil
		}
		if err := within(above, chosen); err != nil { // it was planned in another program's order
			return nil, err
		}
	}
}

// program makes the program with links of a capacity, in which stages with the policy Optimal
// recompute every micro-batch.
func (p Problem) program(capacity int) (*schedule.Program, error) {
	generate := p.Schedule
	if generate == nil {
		generate = schedule.GPipe
	}
	var workers []int
	for _, s := range p.Stages {
		workers = append(workers, s.Device)
	}
	program, err := generate.Make(schedule.Config{
		Stages: len(p.Stages), MicroBatches: p.MicroBatches, Worker: workers, Skips: p.edges(), Capacity: capacity,
		Recompute: func(stage, microBatch int) bool {
			if stage >= len(p.Stages) {
				return false // the schedule asks for a program of more than there is
			}
			s := p.Stages[stage]
			return s.Policy == Optimal || s.Policy.Recomputes(microBatch)
		},
	})
	if err == nil {
		recomputeLate(program, func(stage int) bool { return p.Stages[stage].Policy == Optimal })
		err = schedule.Check(program, schedule.Limits{})
	}
	if err != nil {
		return nil, fmt.Errorf("planner: %w", err)
	}
	return program, nil
}

// programs makes the programs to plan for, the preferred one first: with any number of values on
// links, and under limits with none, or with one on each link if the program does not run without.
// A schedule's own capacity stays.
func (p Problem) programs() (list []*schedule.Program, err error) {
	if !p.Meet {
		program, err := p.program(0)
		if err != nil || !p.limited() || program.Capacity != 0 {
			return []*schedule.Program{program}, err
		}
		list = append(list, program)
	}
	for _, capacity := range []int{schedule.Meet, 1} {
		program, err := p.program(capacity)
		if err == nil && program.Capacity != capacity {
			return nil, fmt.Errorf("planner: the schedule's program has a capacity of %d values on links, and memory is not planned; want the capacity of the schedule.Config, %d", program.Capacity, capacity)
		}
		if err == nil {
			return append(list, program), nil
		}
		if capacity == 1 && p.Meet {
			return nil, err
		}
	}
	return list, nil
}

// stage returns a stage's plan before its device is planned.
func (p Problem) stage(at int, s Stage) StagePlan {
	out := StagePlan{Device: s.Device, Layers: s.Layers, Policy: s.Policy}
	if s.Policy != Optimal {
		out.MicroBatches = make([]MicroBatch, p.MicroBatches)
		for i := range out.MicroBatches {
			out.MicroBatches[i].Ops = keepAll
			if s.Policy.Recomputes(i) {
				out.MicroBatches[i].Ops = keepInput
			}
		}
		return out
	}
	out.Units, out.Prologue = s.Costs.Units, s.Costs.Prologue
	out.larger, out.smaller, out.most = s.Costs.Footprint, s.smaller().Footprint, p.Larger
	if p.Larger == 0 {
		out.most = p.MicroBatches
	}
	out.memory = s.Memory
	out.MicroBatches = make([]MicroBatch, p.MicroBatches)
	return out
}

func (p Problem) edges() (out []schedule.Edge) {
	for _, s := range p.Skips {
		out = append(out, schedule.Edge{From: s.From, To: s.To})
	}
	for _, t := range p.Ties {
		out = append(out, schedule.Edge{From: t.Earlier, To: t.Later})
	}
	return out
}

// withGradientOffsets returns the skips with the offsets of their gradients on the stages that they
// come from: gradients stand there in the order of the stages that send them.
func withGradientOffsets(skips []Skip) []Skip {
	out := slices.Clone(skips)
	for i := range out {
		for _, s := range skips {
			if s.From == out[i].From && s.FromPlace == out[i].FromPlace && s.To < out[i].To {
				out[i].first += s.Pops
			}
		}
	}
	return out
}

// device plans the stages of a device, or returns its shortage.
//
// The solver may count more or fewer bytes than a replay of the program (see moment), which is
// exact. So it is given fewer bytes if its plans take too many, and more if they leave some, a few
// times. If no plan fits, the plan of the fewest bytes may.
func (p Problem) device(ctx context.Context, out *Plan, at int, in orderedProgram) (*Shortage, error) {
	d, problem := &out.Devices[at], solver.Device{MicroBatches: p.MicroBatches, Larger: p.Larger}
	var stages []int
	uncounted := int64(0)
	for i, s := range p.Stages {
		if s.Device != at || s.Policy != Optimal {
			continue
		}
		first, later, fewer := p.chains(i, in.Program)
		problem.Stages = append(problem.Stages,
			solver.Stage{First: first, Later: later, Fewer: fewer, Receives: i < len(p.Stages)-1,
				Continues: len(stages) > 0 && stages[len(stages)-1] == i-1 && s.Costs.Prologue == 0})
		stages = append(stages, i)
		for _, u := range s.Costs.Footprint.Units {
			uncounted += u.Statistics
		}
		uncounted += 2 * s.Memory.InputGradient
		d.Spread = max(d.Spread, s.Costs.Spread)
	}
	if stages == nil {
		return nil, nil
	}
	d.Limit, d.Base = p.Devices[at].Limit, p.base(at)
	problem.Order = p.order(out, in, at, stages)
	f := &fitting{ctx: ctx, p: p, out: out, at: at, stages: stages, problem: problem, uncounted: uncounted,
		peak: func() int64 { return out.peak(in.graph, in.latest, at) }}
	best, err := f.best(d.Limit - d.Base)
	if err != nil {
		return nil, err
	}
	if d.Limit > 0 && d.Base+best.peak > d.Limit {
		return p.shortage(in.Program, stages, d.Base+best.peak), nil
	}
	f.apply(best.solved)
	d.Time, d.LowerBound, d.Once = best.solved.Time, best.solved.LowerBound, 0
	for _, s := range problem.Stages {
		d.Once += f.once(s)
	}
	return nil, nil
}

// order returns the forwards and backwards of a device's stages, with the bytes that wait
// meanwhile.
func (p Problem) order(out *Plan, in orderedProgram, device int, stages []int) (order []solver.Computation) {
	index := map[int]int{}
	for k, i := range stages {
		index[i] = k
	}
	between, again, before := int64(0), int64(0), int64(0) // bytes that wait since and at the last computation
	pause := func(at int64) {
		if between > max(before, at) { // otherwise more is there at one of the two
			order = append(order, solver.Computation{Stage: solver.Between, Waits: between})
		}
		between = 0
	}
	for _, m := range out.moments(in.graph, in.latest, device) {
		k, ok := index[m.Stage]
		switch {
		case !ok:
			continue
		case m.Kind == schedule.Recompute:
			pause(m.waits)
			again, before = m.waits, m.waits
			continue
		case m.Kind == schedule.BackwardWeight:
			between = max(between, m.waits+secondPeak(out.Stages[m.Stage].footprint(m.MicroBatch)))
			continue
		case m.Kind.Transfer() || m.Kind == schedule.Reduce:
			between = max(between, m.waits)
			continue
		}
		c := solver.Computation{Stage: k, MicroBatch: m.MicroBatch,
			Backward: m.Kind != schedule.Forward, Waits: max(m.waits, again)}
		if !c.Backward {
			c.AtLeast = p.Stages[m.Stage].prologue()
		}
		pause(c.Waits)
		order = append(order, c)
		again, before = 0, c.Waits
	}
	pause(0)
	return order
}

// keepAll and keepInput are the operations of a stage of one unit.
var (
	keepAll   = []remat.Op{{Kind: remat.ForwardSave}, {Kind: remat.LossStep}, {Kind: remat.Backward}}
	keepInput = []remat.Op{{Kind: remat.ForwardKeep}, {Kind: remat.LossStep},
		{Kind: remat.ForwardSave}, {Kind: remat.Backward}}
)

// shortage is the shortage of a device with these stages that needs least bytes.
func (p Problem) shortage(program *schedule.Program, stages []int, least int64) *Shortage {
	d := p.Devices[p.Stages[stages[0]].Device]
	out := &Shortage{Stage: stages[0], Others: stages[1:], Device: d.Name, Limit: d.Limit, Least: least}
	for _, s := range stages {
		out.Layers += p.Stages[s].Layers
	}
	if len(stages) > 1 {
		return out
	}
	s := p.Stages[stages[0]]
	first, _, _ := p.chains(stages[0], program)
	if one, at, err := solver.Least(first); err == nil && s.Costs.Prologue == 0 &&
		one.Ops[at].Kind != remat.LossStep {
		out.SetBy = fmt.Sprintf("layer %q", first.Layers[one.Ops[at].Layer].Name)
	}
	return out
}

// withPrologue puts the units of the prologue, which run first, before operations.
func withPrologue(ops []remat.Op, prologue int) (out []remat.Op) {
	for i := range prologue {
		out = append(out, remat.Op{Kind: remat.Forward, Layer: i})
	}
	for _, op := range ops {
		if op.Kind != remat.LossStep {
			op.Layer += prologue
		}
		out = append(out, op)
	}
	return out
}
