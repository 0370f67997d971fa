package schedule_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"penstock.example/internal/must"
	"penstock.example/schedule"
)

// Recomputation runs ahead of the gradient: of all recomputations only the last stage's first one
// and those between two backwards of a stage delay the step. With equal times that is m of them, as
// if there were one stage.
func TestRecomputationRunsAhead(t *testing.T) {
	for n := 1; n <= 4; n++ {
		for m := 1; m <= 4; m++ {
			timeline := simulate(t, gpipe(t,
				schedule.Config{Stages: n, MicroBatches: m, Recompute: always}), schedule.Unit)
			if got, want := timeline.Makespan(), time.Duration(2*(m+n-1)+m)*time.Millisecond; got != want {
				t.Errorf("%d stages, %d micro-batches: takes %v, want %v", n, m, got, want)
			}
		}
	}
}

// causal fails unless the timeline has every action of the program once, those of a worker one
// after the other in the program's order, none before what it needs has ended, and events in an
// order that shows all that.
func causal(t *rapid.T, p *schedule.Program, timeline schedule.Timeline) {
	t.Helper()
	must.Do(t, timeline.Validate())
	g := p.Graph()
	next := make([]int, len(p.Workers))
	free := make([]time.Duration, len(p.Workers))
	end := make(map[int]time.Duration)
	for _, e := range timeline.Events {
		id := g.First[e.Worker] + next[e.Worker]
		if next[e.Worker] == len(p.Workers[e.Worker]) || g.Actions[id] != e.Action {
			t.Fatalf("worker %d performs %v as number %d", e.Worker, e.Action, next[e.Worker])
		}
		if e.Action.Kind != schedule.Reduce && e.Start < free[e.Worker] {
			t.Fatalf("worker %d starts %v at %v, busy until %v", e.Worker, e.Action, e.Start, free[e.Worker])
		}
		for _, dep := range g.Deps[id] {
			if at, done := end[dep]; !done || e.Start < at {
				t.Fatalf("%v starts at %v before %v has ended", e.Action, e.Start, g.Actions[dep])
			}
		}
		next[e.Worker]++
		if e.Action.Kind != schedule.Reduce { // which goes on beside the rest
			free[e.Worker] = e.End
		}
		end[id] = e.End
	}
	if len(end) != len(g.Actions) {
		t.Fatalf("%d of %d actions took place", len(end), len(g.Actions))
	}
}

func ExampleSimulate() {
	p, err := schedule.GPipe(schedule.Config{Stages: 3, MicroBatches: 4})
	if err != nil {
		fmt.Println(err)
		return
	}
	timeline, err := schedule.Simulate(p, func(a schedule.Action) time.Duration {
		switch a.Kind {
		case schedule.Forward:
			return 10 * time.Millisecond
		case schedule.Backward:
			return 20 * time.Millisecond
		}
		return 0
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(timeline.Grid())
	fmt.Printf("takes %v, worker 0 is idle for %.0f%%\n", timeline.Makespan(), 100*timeline.Idle(0))
	// Output:
	// 1 column = 10ms
	// worker 0  F0 F1 F2 F3 .  .  .  .  .  .  B0--- B1--- B2--- B3---
	// worker 1  .  F0 F1 F2 F3 .  .  .  B0--- B1--- B2--- B3--- .  .
	// worker 2  .  .  F0 F1 F2 F3 B0--- B1--- B2--- B3--- .  .  .  .
	// takes 180ms, worker 0 is idle for 33%
}
