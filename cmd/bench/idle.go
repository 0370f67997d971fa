package main

import (
	"fmt"
	"time"

	"penstock.example/schedule"
)

// actions adds up recorded steps of a program.
type actions struct {
	program  *schedule.Program
	steps    int
	took     map[schedule.Action]time.Duration // by action
	makespan time.Duration
	replayed time.Duration // the makespan had every action of the step started when nothing was left to wait for
}

func (a *actions) add(t *schedule.Timeline) error {
	took := map[schedule.Action]time.Duration{}
	for _, e := range t.Events {
		took[e.Action] = e.End - e.Start
	}
	replayed, err := schedule.Simulate(a.program, func(x schedule.Action) time.Duration { return took[x] })
	if err != nil {
		return err
	}
	if a.took == nil {
		a.took = map[schedule.Action]time.Duration{}
	}
	for x, d := range took {
		a.took[x] += d
	}
	a.makespan += t.Makespan()
	a.replayed += replayed.Makespan()
	a.steps++
	return nil
}

// idle compares recorded steps with simulations of the program that they ran. Idle is the share of
// the makespan in which a worker does nothing; what it transfers itself is work. Over all steps a
// worker is busy for as long in all three, so what differs is the makespan.
type idle struct {
	Steps    int       `json:"steps"`
	Measured []float64 `json:"measured"` // by worker
	// Replayed is of a simulation of every step with the durations of that step: the machine
	// without the time from the end of an action to the start of one that waited for it.
	Replayed []float64 `json:"replayed"`
	// Predicted is of one simulation, with the mean durations. A stage waits for the slowest of
	// what it needs, not for the mean, so steps that are not alike take longer.
	Predicted []float64 `json:"predicted"`
	Points    []float64 `json:"points"` // measured less predicted, in hundredths
	// The makespans in milliseconds: of the mean step as measured and as replayed, and of the
	// simulated one.
	MeasuredMS  float64 `json:"measured_ms"`
	ReplayedMS  float64 `json:"replayed_ms"`
	PredictedMS float64 `json:"predicted_ms"`
}

// idle is of the program's workers.
func (a *actions) idle() (idle, error) {
	if a.steps == 0 {
		return idle{}, fmt.Errorf("no step was recorded")
	}
	n := time.Duration(a.steps)
	simulated, err := schedule.Simulate(a.program, func(x schedule.Action) time.Duration { return a.took[x] / n })
	if err != nil {
		return idle{}, err
	}
	ms := func(d time.Duration) float64 { return d.Seconds() * 1e3 }
	out := idle{Steps: a.steps, MeasuredMS: ms(a.makespan / n), ReplayedMS: ms(a.replayed / n), PredictedMS: ms(simulated.Makespan())}
	for worker := range a.program.Workers {
		var busy time.Duration
		for _, x := range a.program.Workers[worker] {
			busy += a.took[x]
		}
		share := func(makespan time.Duration) float64 { return 1 - float64(busy)/float64(makespan) }
		measured, predicted := share(a.makespan), simulated.Idle(worker)
		out.Measured, out.Replayed, out.Predicted = append(out.Measured, measured), append(out.Replayed, share(a.replayed)), append(out.Predicted, predicted)
		out.Points = append(out.Points, 100*(measured-predicted))
	}
	return out, nil
}
