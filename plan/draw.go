package plan

import (
	"fmt"
	"strings"
	"time"

	"penstock.example/schedule"
)

// Step is the predicted duration of a step: of the program with the predicted times of its actions,
// where transfers take no time. It is 0 unless all stages have predictions.
func (p *Plan) Step() time.Duration {
	duration, predicted := p.durations()
	if !predicted {
		return 0
	}
	step, _, err := schedule.Links{}.Predict(p.Program, duration)
	if err != nil {
		return 0
	}
	return step
}

// Timeline is the predicted timeline of a step, as for [Plan.Step], with bytes ([Plan.Hold]).
// predicted is false unless all stages have predictions: then every action takes one unit.
func (p *Plan) Timeline() (t schedule.Timeline, predicted bool, err error) {
	return p.TimelineOver(schedule.Links{})
}

// TimelineOver is [Plan.Timeline] with transfers that take what links cost.
func (p *Plan) TimelineOver(links schedule.Links) (t schedule.Timeline, predicted bool, err error) {
	duration, predicted := p.durations()
	if t, err = links.Simulate(p.Program, duration); err != nil {
		return t, false, fmt.Errorf("plan: %w", err)
	}
	p.Hold(t)
	return t, predicted, nil
}

// Hold sets the bytes that devices hold, at most, at the end of each event of a timeline of the
// plan's program. A value for another worker waits as long as the program lets it. Devices without
// known footprints, as in a plan that was read, stay unchanged.
func (p *Plan) Hold(t schedule.Timeline) {
	live := map[schedule.Action]int64{}
	var g *schedule.Graph
	var latest []int
	for i, d := range p.Devices {
		if !p.sized(i) {
			continue
		}
		if g == nil {
			g = p.Program.Graph()
			latest = g.LatestReceives()
		}
		p.newReplay(g, latest, i).peak(func(a schedule.Action, _, bytes int64) { live[a] = d.Base + bytes })
	}
	for i := range t.Events {
		if bytes, known := live[t.Events[i].Action]; known {
			t.Events[i].Live = bytes
		}
	}
}

// durations is the predicted duration of each action. Without predictions for all stages every
// action takes one unit.
func (p *Plan) durations() (of func(schedule.Action) time.Duration, known bool) {
	for _, s := range p.Stages {
		if p.Devices[s.Device].Time == 0 {
			return schedule.Unit, false
		}
	}
	return func(a schedule.Action) time.Duration {
		m, us := p.Stages[a.Stage].MicroBatches[a.MicroBatch], 0.0
		switch a.Kind {
		case schedule.Forward:
			us = m.Forward
		case schedule.Recompute:
			us = m.Recompute
		case schedule.Backward:
			us = m.Backward
		case schedule.BackwardInput, schedule.BackwardWeight:
			us = m.Backward / 2 // a product's two gradients take the same
		}
		return time.Duration(us * float64(time.Microsecond))
	}, true
}

// Draw draws the plan in lines of at most a number of characters: the actions of each worker over
// time, the recomputations of each stage, and the predictions of each device.
//
//	1 column = 4.5ms
//	worker 0  F0 F1 .  .  B0--- B1---
//	worker 1  .  F0 F1 B0--- B1---
//	stage 0 on cpu:0: 2 layers, except_last
//	stage 1 on cpu:1: 3 layers in 2 units, optimal, 4 forwards run again
//	cpu:1: 52.5 ms against 50.0 without recomputation, at most 880 bytes of 900
func (p *Plan) Draw(characters int) (string, error) {
	if err := p.Check(); err != nil {
		return "", err
	}
	t, known, err := p.Timeline()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	grid := t.GridWidth(characters)
	if !known {
		_, grid, _ = strings.Cut(grid, "\n") // the unit of time means nothing
	}
	b.WriteString(strings.TrimRight(grid, "\n") + "\n")
	for i, s := range p.Stages {
		fmt.Fprintf(&b, "stage %d on %s: %d layers", i, p.Devices[s.Device].Name, s.Layers)
		if s.Units != nil {
			fmt.Fprintf(&b, " in %d units", len(s.Units))
		}
		fmt.Fprintf(&b, ", %s", s.Policy)
		if s.Policy == Optimal {
			fmt.Fprintf(&b, ", %d forwards run again", s.Recomputed())
		}
		b.WriteByte('\n')
	}
	for i, d := range p.Devices {
		if !p.planned(i) {
			continue
		}
		fmt.Fprintf(&b, "%s: %.1f ms against %.1f without recomputation, at most %d bytes", d.Name,
			d.Time/1000, d.Once/1000, d.Peak)
		if d.Limit > 0 {
			fmt.Fprintf(&b, " of %d", d.Limit)
		}
		b.WriteByte('\n')
	}
	return b.String(), nil
}
