package planner_test

import (
	"testing"

	"pgregory.net/rapid"

	"penstock.example/internal/draws"
	"penstock.example/planner"
	"penstock.example/schedule"
)

// Under a limit no step is longer than that of links on which nothing waits, and no plan within fewer bytes, for
// links of the same capacity, takes less than the lower bound.
func TestPlansUnderLimits(t *testing.T) {
	draws.Checks(t, 10, 25) // each is planned ten times
	rapid.Check(t, func(t *rapid.T) {
		c := chain(t, 5)
		p := planner.FromChain(c, []int{2, 3}, []int{0, 1}, rapid.IntRange(1, 4).Draw(t, "micro-batches"))
		p.Schedule = rapid.SampledFrom([]schedule.Generator{schedule.GPipe, schedule.OneFOneB}).Draw(t, "schedule")
		free, err := planner.Solve(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		most := max(free.Devices[0].Peak, free.Devices[1].Peak)
		within := func(limit int64, meet bool) *planner.Plan {
			p.Meet = meet
			for i := range p.Devices {
				p.Devices[i].Limit = limit
			}
			out, err := planner.Solve(t.Context(), p)
			if err != nil {
				return nil
			}
			return out
		}
		var all []*planner.Plan
		for _, part := range []int64{5, 6, 7, 8, 9} {
			limit := most * part / 10
			out, meet := within(limit, false), within(limit, true)
			if meet != nil && (out == nil || out.Step() > meet.Step()) {
				t.Fatalf("within %d bytes\n%v, and where nothing waits on links\n%v", limit, out, meet)
			}
			if out != nil {
				all = append(all, out)
			}
		}
		for i, less := range all {
			for _, more := range all[i:] {
				for at, d := range more.Devices {
					if took := less.Devices[at].Time; less.Program.Capacity == more.Program.Capacity && took < d.LowerBound-1e-6 {
						t.Fatalf("device %d takes %v within %d bytes, below the bound %v of %d", at, took, less.Devices[at].Limit, d.LowerBound, d.Limit)
					}
				}
			}
		}
	})
}
