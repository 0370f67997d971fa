package planner

import (
	"context"
	"slices"

	"penstock.example/remat"
	"penstock.example/schedule"
)

// solveWalk plans a step by walks of its devices.
func (p Problem) solveWalk(ctx context.Context, programs []*schedule.Program) (best *Plan, err error) {
	curves := map[curveKey]*curve{}
	var short *MemoryError
	for _, program := range programs {
		plan, lack, err := p.solveProgram(ctx, program, curves)
		if err != nil {
			return nil, err
		}
		switch {
		case lack != nil:
			short = lack
		case best == nil || plan.Step() < best.Step():
			best = plan
		}
	}
	if best == nil {
		return nil, short
	}
	return best, nil
}

func (p Problem) solveProgram(ctx context.Context, program *schedule.Program, curves map[curveKey]*curve) (*Plan, *MemoryError, error) {
	out := &Plan{Program: program, skips: withGradientOffsets(p.Skips), ties: p.Ties}
	for _, d := range p.Devices {
		out.Devices = append(out.Devices, DevicePlan{Name: d.Name})
	}
	for i, s := range p.Stages {
		out.Stages = append(out.Stages, p.stage(i, s))
	}
	in := newOrderedProgram(program)
	walks := make([]*walker, len(p.Devices))
	short := &MemoryError{}
	for at, d := range p.Devices {
		if !slices.ContainsFunc(p.Stages, func(s Stage) bool { return s.Device == at && s.Policy == Optimal }) {
			continue
		}
		enough := int64(0)
		if d.Limit == 0 {
			enough = 1 << 62
		}
		w, err := p.walk(ctx, out, at, in, curves, enough)
		if err != nil {
			return nil, nil, err
		}
		walks[at] = w
		out.Devices[at].Limit, out.Devices[at].Base = d.Limit, p.base(at)
		if least := w.states[len(w.states)-1].peak + p.base(at); d.Limit > 0 && least > d.Limit {
			var stages []int
			for i, s := range p.Stages {
				if s.Device == at {
					stages = append(stages, i)
				}
			}
			short.Stages = append(short.Stages, *p.shortage(program, stages, least))
		}
	}
	if len(short.Stages) > 0 {
		return nil, short, nil
	}
	at := make([]int, len(walks))
	sim, err := schedule.NewSimulation(program)
	if err != nil {
		return nil, nil, err
	}
	durations, _ := out.durations()
	for i := range out.Devices {
		out.Devices[i].Time = 1
	}
	durations, _ = out.durations()
	best, bestStep := []int(nil), int64(0)
	for i := range walks {
		if walks[i] != nil {
			walks[i].apply(0)
		}
	}
	for {
		next, most, fits := -1, 0.0, true
		for i, w := range walks {
			if w == nil || p.Devices[i].Limit == 0 {
				continue
			}
			share := float64(w.states[at[i]].peak+out.Devices[i].Base) / float64(p.Devices[i].Limit)
			fits = fits && share <= 1
			if at[i]+1 < len(w.states) && share > most {
				next, most = i, share
			}
		}
		if fits {
			if step := int64(sim.Run(durations, schedule.Links{}, nil)); best == nil || step < bestStep {
				best, bestStep = slices.Clone(at), step
			}
		}
		if next < 0 {
			break
		}
		at[next]++
		walks[next].apply(at[next])
	}
	for i, w := range walks {
		if w == nil {
			continue
		}
		w.apply(best[i])
		d := &out.Devices[i]
		d.Time = 0
		for _, s := range out.Stages {
			if s.Device == i {
				for _, m := range s.MicroBatches {
					d.Time += m.Forward + m.Recompute + m.Backward
				}
			}
		}
		d.Once = d.Time - w.states[best[i]].time
		d.LowerBound = min(d.Once, d.Time)
	}
	out.Program = program.Without(func(a schedule.Action) bool { return !out.recomputes(a.Stage, a.MicroBatch) })
	out.predictPeaks()
	return out, nil, nil
}

func (w *walker) apply(k int) {
	for i, point := range w.states[k].points {
		it := &w.items[i]
		w.out.Stages[it.stage].MicroBatches[it.microBatch] = it.curve.plan(point)
	}
}

var _ = remat.Forward
