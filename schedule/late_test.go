package schedule_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"penstock/schedule"
)

// Recomputing late never pays if every stage has a worker of its own: a recomputation ahead fills time in which the
// worker would wait for the gradient.
func TestLateIsNeverShorter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		config := drawConfig(t)
		config.Unbuffered = false // there a recomputation that waits lets others go first
		config.Worker = nil
		duration := drawDurations(t, config.Stages)
		config.LateRecompute = false
		ahead := simulate(t, gpipe(t, config), duration).Makespan()
		config.LateRecompute = true
		if late := simulate(t, gpipe(t, config), duration).Makespan(); late < ahead {
			t.Fatalf("takes %v late, %v ahead", late, ahead)
		}
	})
}

// What running ahead gains: m recomputations delay the step ahead (TestRecomputationRunsAhead), late also the first
// one of every other stage. A copy worker is no way round the wait.
func TestLateRecomputationDelaysEveryStage(t *testing.T) {
	for n := 1; n <= 4; n++ {
		for m := 1; m <= 4; m++ {
			for _, copies := range []bool{false, true} {
				config := schedule.Config{Stages: n, MicroBatches: m, Recompute: always, LateRecompute: true, CopyWorkers: copies}
				timeline := simulate(t, gpipe(t, config), schedule.Unit)
				if got, want := timeline.Makespan(), time.Duration(2*(m+n-1)+m+n-1)*time.Millisecond; got != want {
					t.Errorf("%d stages, %d micro-batches, copy workers %v: takes %v, want %v", n, m, copies, got, want)
				}
			}
		}
	}
}

// Where stages share workers both orders are heuristics, and a late recomputation can happen to leave its worker free
// for the other stage at the better time. It does so here.
func TestLateCanBeShorterOnSharedWorkers(t *testing.T) {
	config := schedule.Config{
		Stages: 3, MicroBatches: 3, Worker: []int{0, 1, 0},
		Recompute: func(stage, microBatch int) bool { return stage == 2 && microBatch == 2 },
	}
	ahead := simulate(t, gpipe(t, config), schedule.Unit).Makespan()
	config.LateRecompute = true
	late := simulate(t, gpipe(t, config), schedule.Unit).Makespan()
	if late != 13*time.Millisecond || ahead != 14*time.Millisecond {
		t.Errorf("takes %v late, %v ahead, want 13ms and 14ms", late, ahead)
	}
}

// The text says that the program is late, so that what is read back waits for the gradients too.
func TestLateSurvivesItsText(t *testing.T) {
	config := schedule.Config{Stages: 2, MicroBatches: 1, Recompute: always, LateRecompute: true, CopyWorkers: true}
	g := parse(t, gpipe(t, config).String()).Graph()
	id, _ := g.IndexOf(action(t, "0R0"))
	if got := texts(g, g.Cross[id]); got != "1>0B0" {
		t.Errorf("0R0 waits for %q, want 1>0B0", got)
	}
}
