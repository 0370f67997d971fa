package planner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"penstock.example/internal/arg"
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
// micro-batch makes, count as held all the time, chosen so that the plan's own peak results. So the
// plan lies on the curve. Far from it the curve is an estimate.
//
// It blocks until the points are found. When the deadline of ctx passes it returns the points found
// so far, spread over all limits: the ends are found first, then the middle of the widest gap. It
// fails for a plan without footprints, and with ctx.Err() when ctx is cancelled.
func (p *Plan) OverLimits(ctx context.Context, chains []remat.Chain, points int) ([]LimitPoint, error) {
	if err := arg.Context(ctx, "planner"); err != nil {
		return nil, err
	}
	problem, err := p.problemOf(chains)
	if err != nil {
		return nil, err
	}
	out, err := problem.overLimits(ctx, points, p.fullest())
	if errors.Is(err, context.DeadlineExceeded) {
		err = nil
	}
	return out, err
}

// fullest is the greatest peak of a device.
func (p *Plan) fullest() (most int64) {
	for _, d := range p.Devices {
		most = max(most, d.Peak)
	}
	return most
}

// problemOf is the problem of planning the same step anew, from what chains say, without limits.
func (p *Plan) problemOf(chains []remat.Chain) (Problem, error) {
	out := Problem{MicroBatches: p.MicroBatches(), NoBound: true,
		Schedule: schedule.Fixed(p.Program.WithoutReduce())}
	if len(chains) != len(p.Stages) {
		return out, fmt.Errorf("planner: the chains of %d stages, and the plan has %d", len(chains),
			len(p.Stages))
	}
	for _, e := range p.Program.Skips { // what moves over them is not in the chains
		out.Skips = append(out.Skips, Skip{From: e.From, To: e.To})
	}
	for i, s := range p.Stages {
		c := chains[i]
		if s.Policy != Optimal || len(c.Layers) == 0 || len(c.Layers) != len(s.Units)-s.Prologue {
			return out, fmt.Errorf("planner: the plan does not say what stage %d takes, with the policy %s and %d units for %d layers of its chain", i, s.Policy, len(s.Units), len(c.Layers))
		}
		costs := Costs{Footprint: remat.FootprintOf(c, s.Prologue), Loss: c.Loss.Backward, Units: s.Units, Prologue: s.Prologue}
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
		out.Devices = append(out.Devices, Device{Name: d.Name, Live: max(d.Peak-own.peak(g, latest, i), 0)})
	}
	return out, nil
}

// overLimits finds points; one of them has the limit at.
func (p Problem) overLimits(ctx context.Context, points int, at int64) (out []LimitPoint, err error) {
	p.Devices = slices.Clone(p.Devices)
	solve := func(limit int64) (*Plan, error) {
		for i := range p.Devices {
			p.Devices[i].Limit = limit
		}
		plan, err := Solve(ctx, p)
		if err = cmp.Or(ctx.Err(), err); err == nil {
			out = append(out, LimitPoint{limit, plan.Step()})
		}
		return plan, err
	}
	free, err := solve(0)
	if err != nil {
		return out, err
	}
	most := free.fullest()
	out[0].Limit = most
	var short *MemoryError
	if _, err = solve(1); !errors.As(err, &short) {
		return out, err
	}
	err = nil
	wanted := []int64{short.Least(), at}
	for tries := 0; len(out) < points && tries < 2*points; tries++ {
		if len(wanted) == 0 {
			slices.SortFunc(out, byLimit)
			widest := 0
			for i := range len(out) - 1 {
				if out[i+1].Limit-out[i].Limit > out[widest+1].Limit-out[widest].Limit {
					widest = i
				}
			}
			if len(out) < 2 || out[widest+1].Limit-out[widest].Limit < 2 {
				break
			}
			wanted = append(wanted, (out[widest].Limit+out[widest+1].Limit)/2)
		}
		limit := wanted[0]
		wanted = wanted[1:]
		if slices.ContainsFunc(out, func(o LimitPoint) bool { return o.Limit == limit }) || limit > most {
			continue
		}
		if _, err = solve(limit); err != nil && !errors.As(err, &short) {
			break
		}
		err = nil
	}
	slices.SortFunc(out, byLimit)
	for i := 1; i < len(out); i++ { // a plan within fewer bytes is one within more
		out[i].Step = min(out[i].Step, out[i-1].Step)
	}
	return out, err
}

func byLimit(a, b LimitPoint) int { return cmp.Compare(a.Limit, b.Limit) }
