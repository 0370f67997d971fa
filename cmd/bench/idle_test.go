package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"penstock.example/schedule"
)

// recorded is a timeline as the simulator would have it, with everything from some moment on late
// by a delay.
func recorded(t *testing.T, p *schedule.Program, from, delay time.Duration) *schedule.Timeline {
	t.Helper()
	timeline, err := schedule.Simulate(p, func(a schedule.Action) time.Duration {
		if a.Kind.Transfer() {
			return 0
		}
		return time.Second
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range timeline.Events {
		if e := &timeline.Events[i]; e.Start >= from {
			e.Start += delay
			e.End += delay
		}
	}
	return &timeline
}

func TestIdleBesideTheSimulation(t *testing.T) {
	// 0: F0 F1 .  .  B0 B1 .
	// 1: .  F0 F1 B0 B1 .  .     of 6 seconds, each stage works for 4
	program, err := schedule.GPipe(schedule.Config{Stages: 2, MicroBatches: 2})
	if err != nil {
		t.Fatal(err)
	}
	third := []float64{1. / 3, 1. / 3}
	for _, row := range []struct {
		reason string
		delays []time.Duration // of the steps
		want   idle
	}{
		{"steps that go as simulated", []time.Duration{0, 0, 0}, idle{
			Steps: 3, Measured: third, Replayed: third, Predicted: third, Points: []float64{0, 0}, MeasuredMS: 6000, ReplayedMS: 6000, PredictedMS: 6000,
		}},
		{"a step in which all wait for 4 seconds: of 16 seconds, each stage works for 8", []time.Duration{0, 4 * time.Second}, idle{
			Steps: 2, Measured: []float64{0.5, 0.5}, Replayed: third, Predicted: third, Points: []float64{100. / 6, 100. / 6}, MeasuredMS: 8000, ReplayedMS: 6000, PredictedMS: 6000,
		}},
	} {
		a := actions{program: program}
		for _, d := range row.delays {
			if err := a.add(recorded(t, program, 3*time.Second, d)); err != nil {
				t.Fatal(err)
			}
		}
		got, err := a.idle()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(row.want, got, cmpopts.EquateApprox(0, 1e-9)); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", row.reason, diff)
		}
	}
}

// Where now one stage is slow and now the other, every step is slower than the mean of the two:
// that is no waiting of the machine's.
func TestIdleOfStepsThatAreNotAlike(t *testing.T) {
	program, err := schedule.GPipe(schedule.Config{Stages: 2, MicroBatches: 2})
	if err != nil {
		t.Fatal(err)
	}
	a := actions{program: program}
	for slow := range 2 {
		timeline, err := schedule.Simulate(program, func(x schedule.Action) time.Duration {
			switch {
			case x.Kind.Transfer():
				return 0
			case x.Stage == slow:
				return 3 * time.Second
			}
			return time.Second
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := a.add(&timeline); err != nil {
			t.Fatal(err)
		}
	}
	got, err := a.idle()
	if err != nil {
		t.Fatal(err)
	}
	// A slow stage works for 12 seconds and the other for 4; each step takes 14, the last stage's
	// or the first's 12 and both ends of the other's. Two seconds an action would take 12.
	want := idle{
		Steps: 2, Measured: []float64{3. / 7, 3. / 7}, Replayed: []float64{3. / 7, 3. / 7}, Predicted: []float64{1. / 3, 1. / 3}, Points: []float64{200. / 21, 200. / 21},
		MeasuredMS: 14000, ReplayedMS: 14000, PredictedMS: 12000,
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateApprox(0, 1e-9)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestIdleOfNothing(t *testing.T) {
	if got, err := new(actions).idle(); err == nil {
		t.Errorf("no steps have %+v", got)
	}
}
