package plan

import (
	"testing"
	"time"

	"penstock.example/internal/draws"
)

// With more bytes a step takes no longer, but for 5 %, as plans of devices with several micro-batches in flight
// need not be the best (see remat/solver); and no limit is refused above one that is kept.
func TestStepsOverLimits(t *testing.T) {
	p := Profile{[]Costs{{Chain: madeUp(9)}}}
	for _, name := range []string{"zb-h1", "interleaved"} {
		w := Options{Devices: 2, MicroBatches: []int{4}, Schedules: []string{name}}
		most := int64(0)
		for _, bytes := range search(t, p, devices(2, 0), w).Best.Peaks {
			most = max(most, bytes)
		}
		best, kept := time.Duration(0), int64(0)
		limits := draws.Pick[int64](12, 40)
		for k := range limits {
			w.Limit = most/4 + (most-most/4)*(k+1)/limits
			r, err := Search(t.Context(), p, devices(2, 0), w)
			switch {
			case err != nil:
				t.Fatal(err)
			case r.Best == nil && kept > 0:
				t.Errorf("%s: %d bytes are refused, where %d are kept: %v", name, w.Limit, kept, r.Short)
			case r.Best == nil:
			case kept == 0 || r.Best.Step < best:
				best, kept = r.Best.Step, w.Limit
			case float64(r.Best.Step) > 1.05*float64(best):
				t.Errorf("%s: a step takes %v within %d bytes, and %v within %d", name, r.Best.Step, w.Limit, best, kept)
			}
		}
		if kept == 0 {
			t.Errorf("%s: %v within %d bytes", name, best, kept)
		}
	}
}
