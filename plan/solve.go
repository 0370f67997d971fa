package plan

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"penstock.example/internal/arg"
	"penstock.example/internal/solver"
	"penstock.example/remat"
	"penstock.example/schedule"
)

// Solve plans a step. It blocks until the plan is made or ctx ends. It fails with a [*MemoryError] if
// a device has no plan within its limit, with ctx.Err(), with an [*arg.ConfigError] for a wrong field
// of the problem, or with an error of the schedule's program.
//
// The program is made first, and recomputes everything that may be recomputed. Each device is planned
// in the program's order. Recomputations that the plan does not need are then taken out.
//
// Under a limit there are two programs. In one any number of values may wait on links, so that stages
// hardly wait for each other. In the other nothing waits, which needs fewer bytes. Solve returns the
// plan with the shorter step. More bytes never give a slower plan, as walks do not know the limit.
func Solve(ctx context.Context, p Problem) (*Plan, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	programs, err := p.programs()
	if err != nil {
		return nil, err
	}
	best, short, err := p.best(ctx, programs, false)
	if err == nil && best == nil {
		best, short, err = p.best(ctx, programs, true)
	}
	if err == nil && best == nil {
		err = short
	}
	return best, err
}

func refuse(field string, value any, problem, remedy string) error {
	return &arg.ConfigError{Of: "plan", Field: field, Value: value, Problem: problem, Remedy: remedy}
}

func (p Problem) check() error {
	if err := cmp.Or(arg.AtLeast("plan", "MicroBatches", p.MicroBatches, 1),
		arg.AtLeast("plan", "the number of Stages", len(p.Stages), 1)); err != nil {
		return err
	}
	for i, s := range p.Stages {
		switch {
		case s.Device < 0 || s.Device >= len(p.Devices):
			return refuse("Stages", s.Device, fmt.Sprintf("the device of stage %d", i),
				fmt.Sprintf("want an index below %d", len(p.Devices)))
		case !slices.Contains(Policies, s.Policy):
			return refuse("Stages", string(s.Policy), fmt.Sprintf("the policy of stage %d", i),
				fmt.Sprintf("want one of %v", Policies))
		case slices.ContainsFunc(p.Stages[:i], func(o Stage) bool {
			return o.Device == s.Device && (o.Policy == Optimal) != (s.Policy == Optimal)
		}):
			return refuse("Stages", string(Optimal), "the policy of some stages on "+p.Devices[s.Device].Name+
				", whose memory is planned as one", "want it for all stages of a device, or for none")
		}
	}
	return nil
}

func (p Problem) limited() bool {
	return slices.ContainsFunc(p.Stages,
		func(s Stage) bool { return s.Policy == Optimal && p.Devices[s.Device].Limit > 0 })
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
		Stages: len(p.Stages), MicroBatches: p.MicroBatches, Worker: workers, Skips: p.edges(),
		Capacity: capacity,
		Recompute: func(stage, microBatch int) bool {
			if stage >= len(p.Stages) {
				return false // the schedule asks about a larger program
			}
			s := p.Stages[stage]
			return s.Policy == Optimal || s.Policy.Recomputes(microBatch)
		},
	})
	if err == nil {
		recomputeLate(program, func(stage int) bool { return p.Stages[stage].Policy == Optimal })
		err = schedule.Check(program)
	}
	if err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	return program, nil
}

// programs makes the programs to plan for, the preferred one first. In the first any number of values
// may wait on a link. Under limits a second follows, in which none may wait, or one if the schedule
// needs that. A schedule with a capacity of its own has one program.
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
			return nil, fmt.Errorf("plan: the schedule's program has a capacity of %d values on links; "+
				"want the capacity of the schedule.Config, %d", program.Capacity, capacity)
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
func (p Problem) stage(s Stage) StagePlan {
	out := StagePlan{Device: s.Device, Layers: s.Layers, Policy: s.Policy,
		MicroBatches: make([]MicroBatch, p.MicroBatches)}
	if s.Policy != Optimal {
		for i := range out.MicroBatches {
			out.MicroBatches[i].Ops = keepAll
			if s.Policy.Recomputes(i) {
				out.MicroBatches[i].Ops = keepInput
			}
		}
		return out
	}
	out.Units, out.Prologue = s.Costs.Units, s.Costs.Prologue
	out.larger, out.smaller = s.Costs.Footprint, s.Costs.Footprint
	if s.Fewer != nil {
		out.smaller = s.Fewer.Footprint
	}
	out.numLarger, out.memory = cmp.Or(p.Larger, p.MicroBatches), s.Memory
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

// withGradientOffsets sets the offsets of the skips' gradients on the stages that receive them, where
// gradients are in the order of the stages that send them.
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

// keepAll and keepInput are the operations of a stage of one unit.
var (
	keepAll   = []remat.Op{{Kind: remat.ForwardSave}, {Kind: remat.LossStep}, {Kind: remat.Backward}}
	keepInput = []remat.Op{{Kind: remat.ForwardKeep}, {Kind: remat.LossStep},
		{Kind: remat.ForwardSave}, {Kind: remat.Backward}}
)

func (p Problem) shortage(at int, least int64) Shortage {
	d := p.Devices[at]
	out := Shortage{Device: d.Name, Limit: d.Limit, Least: least, Stage: -1}
	for i, s := range p.Stages {
		if s.Device != at {
			continue
		}
		if out.Stage < 0 {
			out.Stage = i
		} else {
			out.Others = append(out.Others, i)
		}
	}
	s := p.Stages[out.Stage]
	if len(out.Others) > 0 || s.Costs.Prologue > 0 {
		return out
	}
	kind := remat.Adds
	if !s.Memory.Gradients {
		kind = remat.Makes
	}
	chain := s.Costs.Chain(kind)
	if _, op, err := solver.Least(chain); err == nil && op.Kind != remat.LossStep {
		out.SetBy = fmt.Sprintf("layer %q", chain.Layers[op.Layer].Name)
	}
	return out
}

// withPrologue puts forwards of the prologue's units before operations.
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

// recomputeLate moves the recomputations of some stages to just before their backwards, so that their
// tensors are not held during other computations. Only transfers stay between. The order of everything
// else stays, so the program still runs to its end.
func recomputeLate(p *schedule.Program, stage func(int) bool) {
	for w, actions := range p.Workers {
		out := make([]schedule.Action, 0, len(actions))
		late := map[[2]int]schedule.Action{}
		for at, a := range actions {
			of := [2]int{a.Stage, a.MicroBatch}
			switch a.Kind {
			case schedule.Recompute:
				next := slices.IndexFunc(actions[at+1:],
					func(b schedule.Action) bool { return !b.Kind.Transfer() })
				if b := actions[at+1+next]; stage(a.Stage) && [2]int{b.Stage, b.MicroBatch} != of {
					late[of] = a
					continue
				}
			case schedule.Backward, schedule.BackwardInput:
				if again, ok := late[of]; ok {
					k := len(out)
					for k > 0 && out[k-1].Kind.Receive() &&
						[2]int{out[k-1].Stage, out[k-1].MicroBatch} == of {
						k--
					}
					out = slices.Insert(out, k, again)
				}
			}
			out = append(out, a)
		}
		p.Workers[w] = out
	}
}
