package schedule

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"penstock.example/internal/must"
)

// unmet is a program with its receives where they stand before meet moves any.
func unmet(p *Program) *Program {
	out := *p
	out.Workers = make([][]Action, len(p.Workers))
	computations := make([][]Action, len(p.Workers))
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

// takesAsLong fails unless a program takes as long as with its receives where they are wanted.
func takesAsLong(t *rapid.T, p *Program, duration func(Action) time.Duration) {
	t.Helper()
	free := *p
	free.Capacity = 0
	got := must.Get(Simulate(&free, duration))(t)
	want := must.Get(Simulate(unmet(&free), duration))(t)
	if got.Makespan() != want.Makespan() {
		t.Fatalf("takes %v, with receives where they are wanted %v\n%v", got.Makespan(), want.Makespan(), p)
	}
}

// Receives that are moved ahead cost no time on links that hold any number of values, where
// computations take what they are assumed to take.
func TestMeetCostsNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.SampledFrom(Schedules()).Draw(t, "schedule")
		devices, virtual := rapid.IntRange(1, 6).Draw(t, "devices"), s.Virtual
		if virtual == 0 {
			virtual = rapid.IntRange(1, 3).Draw(t, "virtual")
		}
		workers := must.Get(s.Workers(devices, virtual))(t)
		c := Config{Stages: len(workers), Worker: workers,
			MicroBatches: rapid.IntRange(1, 12).Draw(t, "micro-batches")}
		if c.Stages > 2 && rapid.Bool().Draw(t, "skip") {
			c.Skips = []Edge{{0, c.Stages - 1}}
		}
		if rapid.Bool().Draw(t, "recompute") {
			c.Recompute = func(stage, microBatch int) bool { return (stage+microBatch)%2 == 0 }
		}
		p := must.Get(s.Generate(c))(t)
		takesAsLong(t, p, usualDuration)
	})
}

// Of GPipe and 1F1B with one stage on each worker they cost no time whatever anything takes.
func TestMeetCostsNothingOnWorkersOfTheirOwn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Config{Stages: rapid.IntRange(1, 6).Draw(t, "stages"),
			MicroBatches: rapid.IntRange(1, 12).Draw(t, "micro-batches")}
		p := must.Get(rapid.SampledFrom([]Generator{GPipe, OneFOneB}).Draw(t, "generator")(c))(t)
		took := rapid.SliceOfN(rapid.IntRange(1, 9), 2*c.Stages, 2*c.Stages).Draw(t, "took")
		takesAsLong(t, p, func(a Action) time.Duration {
			switch a.Kind {
			case Forward:
				return time.Duration(took[2*a.Stage])
			case Backward:
				return time.Duration(took[2*a.Stage+1])
			}
			return 0
		})
	})
}

// An order of computations that cannot run is a mistake of its generator. It ends, and says where.
func TestMeetOfAnOrderThatCannotRun(t *testing.T) {
	f := func(stage, microBatch int) Action { return Action{Forward, stage, microBatch, 0} }
	b := func(stage, microBatch int) Action { return Action{Backward, stage, microBatch, 0} }
	for name, computations := range map[string][][]Action{
		"a backward before its forward": {{b(0, 0), f(0, 0)}, {f(1, 0), b(1, 0)}},
		"nobody sends":                  {{f(0, 0)}, {f(1, 0), b(1, 0), f(1, 1)}},
		"nobody receives":               {{f(0, 0), f(0, 1), b(0, 0)}, {f(1, 0), b(1, 0)}},
	} {
		p := &Program{Stages: 2, MicroBatches: 2, Workers: make([][]Action, 2)}
		func() {
			defer func() {
				if said := fmt.Sprint(recover()); !strings.Contains(said,
					"an order that cannot run: workers wait at [") {
					t.Errorf("%s: %s", name, said)
				}
			}()
			p.fill(computations)
			p.meet()
		}()
	}
}
