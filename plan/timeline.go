package plan

import (
	"fmt"
	"time"

	"penstock.example/schedule"
)

// Timeline returns the predicted timeline of a step, with bytes ([Plan.Hold]). Transfers take no time.
// If some stages have no predictions, predicted is false and every action takes one unit.
func (p *Plan) Timeline() (t schedule.Timeline, predicted bool, err error) {
	return p.TimelineOver(schedule.Links{})
}

// TimelineOver is [Plan.Timeline] with transfers over links.
func (p *Plan) TimelineOver(links schedule.Links) (t schedule.Timeline, predicted bool, err error) {
	duration, predicted := p.durations()
	if t, err = links.Simulate(p.Program, duration); err != nil {
		return t, false, fmt.Errorf("plan: %w", err)
	}
	p.Hold(t)
	return t, predicted, nil
}

// Hold sets the most bytes that devices hold at the end of each event of a timeline of the plan's
// program. A value for another worker waits as long as the program lets it. Events of devices without
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
