package schedule_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock/schedule"
)

// freeTransfers are the same durations, but for transfers, which take no time.
func freeTransfers(duration func(schedule.Action) time.Duration) func(schedule.Action) time.Duration {
	return func(a schedule.Action) time.Duration {
		if a.Kind.Transfer() {
			return 0
		}
		return duration(a)
	}
}

// Copy workers divide every list in two and change the order of neither part.
func TestCopyWorkersDivideLists(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		config := drawConfig(t)
		config.CopyWorkers = false
		one := gpipe(t, config)
		config.CopyWorkers = true
		two := gpipe(t, config)
		workers := len(one.Workers)
		if len(two.Workers) != 2*workers {
			t.Fatalf("%d workers with copy workers, %d without", len(two.Workers), workers)
		}
		for w, actions := range one.Workers {
			var want [2][]schedule.Action
			for _, a := range actions {
				if a.Kind.Transfer() {
					want[1] = append(want[1], a)
				} else {
					want[0] = append(want[0], a)
				}
			}
			if diff := cmp.Diff(want, [2][]schedule.Action{two.Workers[w], two.Workers[workers+w]}); diff != "" {
				t.Fatalf("worker %d (-want +got):\n%s", w, diff)
			}
		}
	})
}

// A copy worker takes waiting off its worker and adds none, so that no step takes longer for it, be transfers free
// or not. It is also why no copy worker can bring about a deadlock.
func TestCopyWorkersDelayNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		config := drawConfig(t)
		duration := drawDurations(t, config.Stages)
		if rapid.Bool().Draw(t, "free") {
			duration = freeTransfers(duration)
		}
		config.CopyWorkers = false
		one := simulate(t, gpipe(t, config), duration).Makespan()
		config.CopyWorkers = true
		if two := simulate(t, gpipe(t, config), duration).Makespan(); two > one {
			t.Fatalf("takes %v with copy workers, %v without", two, one)
		}
	})
}

// Copies overlap with computation: with transfers as long as computations, m micro-batches on 2 stages go forward in
// m+2 units of time, where a worker that copies by itself takes 2m+1.
func TestCopiesOverlap(t *testing.T) {
	unit := func(schedule.Action) time.Duration { return time.Millisecond }
	for m := 1; m <= 5; m++ {
		config := schedule.Config{Stages: 2, MicroBatches: m, Phase: schedule.ForwardOnly}
		one := simulate(t, gpipe(t, config), unit).Makespan()
		config.CopyWorkers = true
		two := simulate(t, gpipe(t, config), unit).Makespan()
		if want := time.Duration(2*m+1) * time.Millisecond; one != want {
			t.Errorf("%d micro-batches: takes %v without copy workers, want %v", m, one, want)
		}
		if want := time.Duration(m+2) * time.Millisecond; two != want {
			t.Errorf("%d micro-batches: takes %v with copy workers, want %v", m, two, want)
		}
	}
}

// A copy worker that has nothing to copy is there all the same, so that worker W+w is always that of w.
func TestCopyWorkerWithoutTransfers(t *testing.T) {
	p := gpipe(t, schedule.Config{Stages: 1, MicroBatches: 2, CopyWorkers: true})
	if got, want := p.String(), "program whole stages=1 micro-batches=2\nworker 0: 0F0 0F1 0B0 0B1\nworker 1:\n"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := simulate(t, p, schedule.Unit).Grid(), "1 column = 1ms\nworker 0  F0 F1 B0 B1\nworker 1  .  .  .  .\n"; got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	backward := gpipe(t, schedule.Config{Stages: 2, MicroBatches: 1, Phase: schedule.BackwardOnly, CopyWorkers: true})
	if slices.IndexFunc(backward.Workers, func(list []schedule.Action) bool { return len(list) == 0 }) != 3 {
		t.Errorf("no gradient goes to the last stage:\n%v", backward)
	}
}
