package schedule_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"penstock.example/schedule"
)

// drawOneFOneB draws a program of 1F1B: consecutive stages on any number of workers.
func drawOneFOneB(t *rapid.T) (schedule.Config, *schedule.Program) {
	config := drawConfig(t)
	config.Worker = nil
	workers := rapid.IntRange(1, config.Stages).Draw(t, "workers")
	for s := range config.Stages {
		config.Worker = append(config.Worker, s*workers/config.Stages)
	}
	p, err := schedule.OneFOneB(config)
	if err != nil {
		t.Fatal(err)
	}
	return config, p
}

func TestOneFOneBPassesCheck(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		_, p := drawOneFOneB(t)
		if err := schedule.Check(p, schedule.Limits{Meet: true, InOrder: true}); err != nil {
			t.Fatalf("%v\n%v", err, p)
		}
	})
}

// Workers of one stage each hold as many micro-batches as workers follow, themselves included, and
// take as long as with GPipe.
func TestOneFOneBHoldsLess(t *testing.T) {
	took := func(a schedule.Action) time.Duration {
		switch {
		case a.Kind.Transfer():
			return 0
		case a.Kind == schedule.Backward:
			return 2
		}
		return 1
	}
	for p := 1; p <= 8; p++ {
		for m := 1; m <= 4*p; m++ {
			program, err := schedule.OneFOneB(schedule.Config{Stages: p, MicroBatches: m})
			if err != nil {
				t.Fatal(err)
			}
			for r, holds := range schedule.InFlight(program, nil) {
				if want := int64(min(m, p-r)); holds != want {
					t.Errorf("%d stages, %d micro-batches: stage %d holds %d, want %d", p, m, r, holds, want)
				}
			}
			if got, want := simulate(t, program, took).Makespan(), time.Duration(3*(m+p-1)); got != want {
				t.Errorf("%d stages, %d micro-batches: takes %d, want %d", p, m, got, want)
			}
		}
	}
}

func TestOneFOneBErrors(t *testing.T) {
	_, err := schedule.OneFOneB(schedule.Config{Stages: 3, MicroBatches: 2, Worker: []int{0, 1, 0}})
	if want := "schedule: 1f1b: stages are on the workers [0 1 0], want consecutive stages on a worker"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	if _, err := schedule.OneFOneB(schedule.Config{Stages: 3}); err == nil || !strings.HasPrefix(err.Error(), "schedule: 1f1b: 0 micro-batches") {
		t.Errorf("no micro-batches: %v", err)
	}
}

func ExampleOneFOneB() {
	p, err := schedule.OneFOneB(schedule.Config{Stages: 3, MicroBatches: 4})
	if err != nil {
		fmt.Println(err)
		return
	}
	// A stage receives an activation before it sends a gradient where the two workers would
	// otherwise wait for each other on links that meet.
	fmt.Print(p)
	// Output:
	// program whole stages=3 micro-batches=4
	// worker 0: 0F0 0F0>1 0F1 0F1>1 0F2 0F2>1 1>0B0 0B0 0F3 0F3>1 1>0B1 0B1 1>0B2 0B2 1>0B3 0B3
	// worker 1: 0>1F0 1F0 1F0>2 0>1F1 1F1 1F1>2 2>1B0 1B0 0>1F2 1B0>0 1F2 1F2>2 2>1B1 1B1 0>1F3 1B1>0 1F3 1F3>2 2>1B2 1B2 1B2>0 2>1B3 1B3 1B3>0
	// worker 2: 1>2F0 2F0 2B0 1>2F1 2B0>1 2F1 2B1 1>2F2 2B1>1 2F2 2B2 1>2F3 2B2>1 2F3 2B3 2B3>1
}
