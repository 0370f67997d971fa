package plan

import (
	"fmt"
	"time"

	"penstock.example/schedule"
)

// Timeline is the predicted timeline of a step, of the program with the predicted times of its actions,
// where transfers take no time, with bytes ([Plan.Hold]). predicted is false unless all stages have
// predictions: then every action takes one unit.
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
	p.replays(func(i int, r *replay) {
		r.peak(func(a schedule.Action, _, bytes int64) { live[a] = p.Devices[i].Base + bytes })
	})
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
