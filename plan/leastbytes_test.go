package plan

import (
	"context"
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"penstock.example/internal/draws"
	"penstock.example/internal/must"
	"penstock.example/schedule"
)

// randomSpace draws a space under a limit.
func randomSpace(t *rapid.T, mostUnits, mostDevices, mostChunks int) *space {
	schedules := schedule.Schedules()
	s := schedules[rapid.IntRange(0, len(schedules)-1).Draw(t, "schedule")]
	v := rapid.SampledFrom(virtuals(s)).Draw(t, "virtual")
	devices := rapid.IntRange(1, mostDevices).Draw(t, "devices")
	units := rapid.IntRange(devices*v, max(mostUnits, devices*v)).Draw(t, "units")
	w := Options{Limit: rapid.Int64Range(100, 5000).Draw(t, "limit"),
		State: rapid.IntRange(0, 2).Draw(t, "state")}
	p := oneSpace(t, randomChain(t, units), randomMachine(t, devices), w, s.Name, v,
		rapid.IntRange(1, mostChunks).Draw(t, "micro-batches"))
	p.options.Plans = 1 << 30
	return p
}

// No device needs fewer bytes than the bound says.
func TestLeastBytesAreNeeded(t *testing.T) {
	sum, bounds, n := 0.0, 0.0, 0
	rapid.Check(t, func(t *rapid.T) {
		p := randomSpace(t, 8, 4, 6)
		c := randomCut(t, p.units, p.stages())
		for w := range p.workers {
			p.workers[w].bytes = 1
			need, least := max(must.Get(p.leastLimit(context.Background(), w, c))(t), 1), p.leastBytes(w, c)
			if least > need {
				t.Fatalf("%s m=%d %v: worker %d needs %d bytes, below the bound %d", p.schedule.Name, p.m,
					c, w, need, least)
			}
			sum, bounds, n = sum+float64(need), bounds+float64(least), n+1
		}
	})
	t.Logf("%d devices, the bound is %.1f %% of what they need", n, 100*bounds/sum)
}

// leastOfAll is the least limit of all cuts, which are planned as a whole within a single byte, and how
// many cuts there are.
func leastOfAll(t *rapid.T, p *space) (least int64, cuts int) {
	least = none
	everyCut(p.units, p.stages(), func(c cut) {
		cuts++
		problem := p.problem(c)
		problem.First = true // as the search plans it
		for w := range problem.Devices {
			problem.Devices[w].Limit = 1
		}
		var short *MemoryError
		switch _, err := Solve(context.Background(), problem); {
		case errors.As(err, &short):
			least = min(least, short.Least())
		case err != nil:
			t.Fatal(err)
		default:
			least = 1
		}
	})
	return least, cuts
}

// Where no plan fits, the limit that is told is the least of all cuts, within it a plan is found, and
// with a byte less none. Times, which vary from one measurement to the next, change nothing of that.
func TestLeastLimit(t *testing.T) {
	draws.Checks(t, 8, 25)
	rapid.Check(t, func(t *rapid.T) { leastLimit(t, 6, 3, 4) })
}

func leastLimit(t *rapid.T, mostUnits, mostDevices, mostChunks int) {
	p := randomSpace(t, mostUnits, mostDevices, mostChunks)
	w := Options{Devices: len(p.workers), Virtual: []int{p.virtual}, Schedules: []string{p.schedule.Name},
		MicroBatches: []int{p.m}, State: p.options.State, Limit: 1}
	chain := p.chain
	within := func(limit int64) *Result {
		w.Limit = limit
		costs := Profile{[]Costs{{Chain: chain}}}
		return must.Get(Search(context.Background(), costs, devices(len(p.workers), 0), w))(t)
	}
	least, cuts := leastOfAll(t, p)
	if least == 1 {
		t.Skip("of a chain that takes nothing")
	}
	for range 3 {
		for _, limit := range []int64{1, least - 1} {
			told := within(limit)
			if told.Best != nil || told.Short == nil || told.Short.Least() != least {
				t.Fatalf("%s v=%d m=%d: %v is told, the least of %d cuts is %d", p.schedule.Name, p.virtual,
					p.m, told.Short, cuts, least)
			}
		}
		if r := within(least); r.Best == nil {
			t.Fatalf("%s v=%d m=%d: no plan within the least limit, %d", p.schedule.Name, p.virtual, p.m,
				least)
		}
		chain.Layers = slices.Clone(chain.Layers)
		for i := range chain.Layers {
			l := &chain.Layers[i]
			l.Forward *= rapid.Float64Range(0.1, 10).Draw(t, "noise")
			l.ForwardNoGrad, l.Backward = l.Forward, l.Backward*rapid.Float64Range(0.1, 10).Draw(t, "noise")
		}
	}
}

// A unit that no device has memory for is found, and what it needs.
func TestOversized(t *testing.T) {
	c := plainChain([]float64{10, 10, 10}, 1000)
	c.Layers[1].WeightGradient = 50_000
	one, m := Costs{Rows: 4, Chain: c}, devices(2, 0)
	w := Options{Batch: 16, Limit: 199_000, State: 2, Schedules: []string{"1f1b"}}
	u, bytes, found := one.Oversized(m, w)
	if !found || u != 1 || bytes < 4*50_000 {
		t.Errorf("unit %d needs %d bytes, %v", u, bytes, found)
	}
	w.Limit = bytes
	if u, bytes, found := one.Oversized(m, w); found {
		t.Errorf("within as many bytes unit %d needs %d", u, bytes)
	}
	w.Limit = 0
	if u, bytes, found := one.Oversized(m, w); found {
		t.Errorf("without a limit unit %d needs %d", u, bytes)
	}
	m.Devices[0].Bytes, m.Devices[1].Bytes = 1000, 2000
	if _, bytes, found := one.Oversized(m, w); !found || bytes <= 2000 {
		t.Errorf("on small devices %d bytes, %v", bytes, found)
	}
}
