package plan

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"penstock.example/remat"
	"penstock.example/schedule"
)

// LimitPoint is the step under a limit for all devices.
type LimitPoint struct {
	Limit int64 // the same for all devices
	Step  time.Duration
}

// OverLimits returns the step over limits, from the least limit with a plan to a limit under which
// nothing is recomputed, by ascending limits: at most a number of points. The cut, the
// micro-batches and the order of the plan's program stay; only recomputations change. Transfers
// take no time.
//
// chains has the chain of each stage, for a micro-batch after the first, with a layer for each unit
// after the prologue. Bytes that the chains do not have, such as the gradients that the first
// micro-batch makes, count as held all the time, chosen so that the plan's own peak results. Far
// from the plan the curve is an estimate.
//
// It blocks until the points are found. It fails for a plan without footprints, and with ctx.Err()
// when ctx ends first.
func (p *Plan) OverLimits(ctx context.Context, chains []remat.Chain, points int) ([]LimitPoint, error) {
	problem, err := p.problemOf(chains)
	if err != nil {
		return nil, err
	}
	for i := range problem.Devices {
		problem.Devices[i].Limit = 1 // so devices walk to their ends
	}
	programs, err := problem.programs()
	if err != nil {
		return nil, err
	}
	f := &fitting{Problem: problem, known: map[string]*curve{}}
	var list []LimitPoint
	for _, program := range programs {
		out, walks, err := f.walks(ctx, program)
		if err != nil {
			return nil, err
		}
		err = f.descend(out, walks, func(_ []int, fullest float64, step func() time.Duration) bool {
			list = append(list, LimitPoint{int64(fullest), step()})
			return true
		})
		if err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(list, func(a, b LimitPoint) int {
		return cmp.Or(cmp.Compare(a.Limit, b.Limit), cmp.Compare(a.Step, b.Step))
	})
	out := list[:0]
	for _, l := range list { // a plan within fewer bytes is one within more
		if len(out) == 0 || l.Step < out[len(out)-1].Step {
			out = append(out, l)
		}
	}
	if n := len(out); n > points && points > 1 {
		for k := range points {
			out[k] = out[k*(n-1)/(points-1)]
		}
		out = out[:points]
	}
	return out, nil
}

// problemOf is the problem of planning the same step anew, from what chains say, without limits.
func (p *Plan) problemOf(chains []remat.Chain) (Problem, error) {
	out := Problem{MicroBatches: p.MicroBatches(),
		Schedule: schedule.Fixed(p.Program.WithoutReduce())}
	if len(chains) != len(p.Stages) {
		return out, fmt.Errorf("plan: the chains of %d stages, and the plan has %d", len(chains),
			len(p.Stages))
	}
	for _, e := range p.Program.Skips { // what moves over them is not in the chains
		out.Skips = append(out.Skips, Skip{From: e.From, To: e.To})
	}
	for i, s := range p.Stages {
		c := chains[i]
		if s.Policy != Optimal || len(c.Layers) == 0 || len(c.Layers) != len(s.Units)-s.Prologue {
			return out, fmt.Errorf("plan: the plan does not say what stage %d takes, with the policy %s and %d units for %d layers of its chain", i, s.Policy, len(s.Units), len(c.Layers))
		}
		costs := StageCosts{Footprint: remat.FootprintOf(c, s.Prologue), Loss: c.Loss.Backward, Units: s.Units, Prologue: s.Prologue}
		costs.Times = append(make([]remat.UnitTimes, s.Prologue), c.Times()...)
		out.Stages = append(out.Stages, Stage{Device: s.Device, Layers: s.Layers, Policy: Optimal,
			Costs:  costs,
			Memory: Memory{Gradients: true, BatchInput: i == 0}})
	}
	own := &Plan{Program: p.Program, skips: out.Skips}
	for i, s := range out.Stages {
		stage := out.stage(i, s)
		stage.MicroBatches = p.Stages[i].MicroBatches
		own.Stages = append(own.Stages, stage)
	}
	g := own.Program.Graph()
	latest := g.LatestReceives()
	for i, d := range p.Devices {
		out.Devices = append(out.Devices, ProblemDevice{Name: d.Name, Live: max(d.Peak-own.newReplay(g, latest, i).peak(nil), 0)})
	}
	return out, nil
}
