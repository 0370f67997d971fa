package schedule

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// unmet is a program with its receives where they stand before meet moves any.
func unmet(p *Program) *Program {
	out := *p
	out.Workers = make([][]Action, len(p.Workers))
	computations := make(order, len(p.Workers))
	for w, actions := range p.Workers {
		for _, a := range actions {
			if !a.Kind.Transfer() {
				computations[w] = append(computations[w], a)
			}
		}
	}
	out.fill(computations)
	return &out
}

// Receives that are moved ahead cost no time where forwards and backwards take what they are assumed to take, and none at
// all, whatever anything takes, where workers have one stage each.
func TestMeetCostsNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		stages := rapid.IntRange(1, 6).Draw(t, "stages")
		c := Config{Stages: stages, MicroBatches: rapid.IntRange(1, 12).Draw(t, "micro-batches")}
		generate := rapid.SampledFrom([]Generator{GPipe, OneFOneB}).Draw(t, "generator")
		duration := func(a Action) time.Duration {
			switch {
			case a.Kind.Transfer():
				return 0
			case a.Kind == Backward:
				return 2
			}
			return 1
		}
		if rapid.Bool().Draw(t, "shared") {
			devices := rapid.IntRange(1, stages).Draw(t, "devices")
			for s := range stages {
				c.Worker = append(c.Worker, s*devices/stages)
			}
		} else {
			took := rapid.SliceOfN(rapid.IntRange(1, 9), 2*stages, 2*stages).Draw(t, "took")
			duration = func(a Action) time.Duration {
				switch {
				case a.Kind.Transfer():
					return 0
				case a.Kind == Backward:
					return time.Duration(took[2*a.Stage])
				}
				return time.Duration(took[2*a.Stage+1])
			}
		}
		p, err := generate(c)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Simulate(p, duration)
		if err != nil {
			t.Fatal(err)
		}
		want, err := Simulate(unmet(p), duration)
		if err != nil {
			t.Fatal(err)
		}
		if got.Makespan() != want.Makespan() {
			t.Fatalf("takes %v, with receives where they are wanted %v\n%v", got.Makespan(), want.Makespan(), p)
		}
	})
}
