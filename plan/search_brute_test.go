package plan

import (
	"context"
	"testing"

	"pgregory.net/rapid"

	"penstock.example/internal/draws"
	"penstock.example/internal/must"
	"penstock.example/schedule"
)

// The cut that is found is as fast as any, for every schedule, and is proved to be.
func TestBruteForce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		schedules := schedule.Schedules()
		s := schedules[rapid.IntRange(0, len(schedules)-1).Draw(t, "schedule")]
		v := rapid.SampledFrom(virtuals(s)).Draw(t, "virtual")
		devices := rapid.IntRange(1, 4).Draw(t, "devices")
		units := rapid.IntRange(devices*v, max(12, devices*v)).Draw(t, "units")
		p := oneSpace(t, randomChain(t, units), randomMachine(t, devices), Options{}, s.Name, v,
			rapid.IntRange(1, 6).Draw(t, "micro-batches"))
		f := must.Get(p.best(context.Background(), none, none))(t)
		least := int64(none)
		everyCut(units, p.stages(), func(c cut) { least = min(least, p.simulate(c, p.plainTimes(c))) })
		if f.step != least || f.bound != least {
			t.Fatalf("%s v=%d m=%d: %v takes %d ns, bound %d; the best takes %d", s.Name, v, p.m, f.cut,
				f.step, f.bound, least)
		}
		if took, ok, _ := judged(t, p, f.cut); !ok || took != least {
			t.Fatalf("%s v=%d m=%d: %v takes %d ns as planned, found %d", s.Name, v, p.m, f.cut, took, least)
		}
	})
}

// Under limits it is as fast as the best of all cuts that are planned as a whole, and none is above its
// limit.
func TestBruteForceUnderLimits(t *testing.T) {
	draws.Checks(t, 8, 25)
	rapid.Check(t, func(t *rapid.T) { bruteForceUnderLimits(t, 6, 3, 4) })
}

// The same with more units, devices and micro-batches.
func TestBruteForceUnderLimitsOfMore(t *testing.T) {
	draws.Checks(t, 6, 25) // a case takes 0.2 s
	rapid.Check(t, func(t *rapid.T) { bruteForceUnderLimits(t, 12, 4, 6) })
}

func bruteForceUnderLimits(t *rapid.T, mostUnits, mostDevices, mostChunks int) {
	schedules := schedule.Schedules()
	s := schedules[rapid.IntRange(0, len(schedules)-1).Draw(t, "schedule")]
	v := rapid.SampledFrom(virtuals(s)).Draw(t, "virtual")
	devices := rapid.IntRange(1, mostDevices).Draw(t, "devices")
	units := rapid.IntRange(devices*v, max(mostUnits, devices*v)).Draw(t, "units")
	c := randomChain(t, units)
	m := rapid.IntRange(1, mostChunks).Draw(t, "micro-batches")
	w := Options{Limit: rapid.Int64Range(100, 5000).Draw(t, "limit")}
	p := oneSpace(t, c, randomMachine(t, devices), w, s.Name, v, m)
	p.options.Plans = 1 << 30
	f := must.Get(p.best(context.Background(), none, none))(t)
	least, bestMeets := int64(none), false
	everyCut(units, p.stages(), func(c cut) {
		if took, fits, meets := judged(t, p, c); fits && took < least {
			least, bestMeets = took, meets
		}
	})
	near := int64(0)
	if _, _, meets := judged(t, p, f.cut); meets || bestMeets {
		near = least / 10 // a search plans each device alone, and values on links may wait if it fits so
	}
	if d := min(f.step, none) - least; max(d, -d) > near || f.bound < min(f.step, none) {
		t.Fatalf("%s v=%d m=%d limit=%d: %v takes %d ns, bound %d; the best takes %d", s.Name, v, m,
			w.Limit, f.cut, f.step, f.bound, least)
	}
}
