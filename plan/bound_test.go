package plan

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"penstock.example/internal/draws"
	"penstock.example/internal/must"
	"penstock.example/schedule"
)

// What a cut is simulated to take is what package schedule says, and no bound is above it: that of a
// worker, and that of all cuts.
func TestBoundsAreBelowWhatIsSimulated(t *testing.T) {
	draws.Checks(t, 75, 300)
	rapid.Check(t, func(t *rapid.T) {
		schedules := schedule.Schedules()
		s := schedules[rapid.IntRange(0, len(schedules)-1).Draw(t, "schedule")]
		v := rapid.SampledFrom(virtuals(s)).Draw(t, "virtual")
		devices := rapid.IntRange(1, 5).Draw(t, "devices")
		chunks := rapid.IntRange(1, 12).Draw(t, "micro-batches")
		units := devices*v + rapid.IntRange(0, 10).Draw(t, "more units")
		p := oneSpace(t, randomChain(t, units), randomMachine(t, devices), Options{}, s.Name, v, chunks)
		c := randomCut(t, units, p.stages())
		times := p.plainTimes(c)
		took := p.simulate(c, times)
		program := must.Get(p.generate(schedule.Config{Stages: p.stages(), Worker: p.workerOf,
			MicroBatches: p.m,
			Recompute:    func(int, int) bool { return true }}))(t)
		program = program.Without(func(schedule.Action) bool { return true })
		if want, err := p.links(c).Simulate(program, durations(times)); err != nil ||
			int64(want.Makespan()) != took {
			t.Fatalf("%s v=%d m=%d %v: %d ns, package schedule says %d (%v)", s.Name, v, chunks, c, took,
				want.Makespan(), err)
		}
		if floor := p.floor(); floor > took {
			t.Fatalf("%s v=%d m=%d %v: %d ns, below the bound %d of all cuts", s.Name, v, chunks, c, took,
				floor)
		}
		for w := range p.workers {
			if v > 1 || p.virtual > 1 {
				continue
			}
			if bound := p.stageBound(w, c[w], c[w+1]); bound > took {
				t.Fatalf("%s m=%d %v: %d ns, below the bound %d of worker %d", s.Name, chunks, c, took,
					bound, w)
			}
		}
	})
}

// Of a cut that turns out to be too slow while its devices are planned, the others are not planned.
func TestSlowCutsArePlannedInPart(t *testing.T) {
	for seed := range uint64(10) {
		c := cut{0, 3, 6, 9, 12}
		limited := func(limit int64) *space {
			return oneSpace(t, seeded(seed, 12), devices(4, 0), Options{Limit: limit}, "gpipe", 1, 6)
		}
		least := must.Get(limited(1).share(t.Context(), c, none))(t)
		p := limited((least + wholeLimit - 1) / wholeLimit) // the least with which the cut fits
		if step, err := p.evaluate(t.Context(), c, none); err != nil || step >= none || p.solved != 4 {
			t.Fatalf("a step of %d, %d devices planned, %v", step, p.solved, err)
		}
		fresh := limited(p.workers[0].bytes)
		step, err := fresh.evaluate(t.Context(), c, p.simulate(c, p.plainTimes(c))+1)
		if err != nil || step != math.MaxInt64 || fresh.solved > 3 {
			t.Errorf("seed %d: a step of %d, %d devices planned, %v", seed, step, fresh.solved, err)
		}
	}
}

func randomCut(t *rapid.T, units, stages int) cut {
	c := cut{0}
	for s := 1; s < stages; s++ {
		c = append(c, rapid.IntRange(c[s-1]+1, units-(stages-s)).Draw(t, "border"))
	}
	return append(c, units)
}
