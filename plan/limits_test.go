package plan_test

import (
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"

	"penstock.example/internal/draws"
	"penstock.example/plan"
	"penstock.example/schedule"
)

// A larger limit never gives a slower plan, of limits 3 % apart, for every schedule; and the least
// limit that an error says has a plan.
func TestMoreBytesAreNotSlower(t *testing.T) {
	draws.Checks(t, 15, 100)
	rapid.Check(t, func(t *rapid.T) {
		units := rapid.IntRange(4, 12).Draw(t, "units")
		c := chain(t, units)
		for i := range c.Layers {
			c.Layers[i].ForwardNoGrad = c.Layers[i].Forward
		}
		s := rapid.SampledFrom(schedule.Schedules()).Draw(t, "schedule")
		if s.Split {
			c = c.InParts()
		}
		workers, err := s.Workers(2, s.Usual())
		if err != nil || len(workers) > units {
			t.Skip("too few units")
		}
		counts := make([]int, len(workers))
		for i := range units {
			counts[i%len(counts)]++
		}
		p := plan.FromChain(c, counts, workers, 2*rapid.IntRange(1, 3).Draw(t, "micro-batches"))
		p.Schedule = s.Generate
		within := func(limit int64) (*plan.Plan, int64) {
			for i := range p.Devices {
				p.Devices[i].Limit = limit
			}
			found, err := plan.Solve(t.Context(), p)
			var short *plan.MemoryError
			if errors.As(err, &short) {
				return nil, short.Least()
			}
			if err != nil {
				t.Fatal(err)
			}
			return found, 0
		}
		_, least := within(1)
		before := time.Duration(0)
		for limit := least; ; limit += max(limit*3/100, 1) {
			found, lack := within(limit)
			if found == nil {
				t.Fatalf("%d bytes are the least of a limit, and %d do not do: %d", least, limit, lack)
			}
			recomputed := 0
			for _, s := range found.Stages {
				recomputed += s.Recomputed()
			}
			if now := stepOf(t, found); before > 0 && now > before {
				t.Fatalf("a step takes %v within %d bytes, and %v within fewer:\n%v", now, limit, before,
					found)
			} else if before = now; recomputed == 0 {
				return
			}
		}
	})
}
