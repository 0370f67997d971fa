package plan

import (
	"context"
	"math"
	"testing"

	"pgregory.net/rapid"

	"penstock.example/internal/must"
	"penstock.example/remat"
)

// What frozen units hold, and what is sent to them, counts in every plan: the best is that of all cuts,
// by the judgement of the planner and the simulator, and nothing is held or sent for free.
func TestFrozenUnits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		units := rapid.IntRange(2, 6).Draw(t, "units")
		m := Costs{Chain: randomChain(t, units)}
		for i := range rapid.IntRange(0, units-1).Draw(t, "frozen") {
			l := &m.Chain.Layers[i]
			*l = remat.Layer{Name: l.Name, Forward: l.Forward, ForwardNoGrad: l.Forward,
				ForwardTmp: l.Output, ForwardNoGradTmp: l.Output}
		}
		for range units + 1 {
			m.Sent = append(m.Sent, rapid.Int64Range(0, 100).Draw(t, "sent"))
		}
		for range units {
			m.Held = append(m.Held, rapid.Int64Range(0, 400).Draw(t, "held"))
		}
		machine := randomMachine(t, rapid.IntRange(1, min(units, 3)).Draw(t, "devices"))
		for i := range machine.Devices {
			machine.Devices[i].Speed = 1 // so that there is one order of them
		}
		w := Options{MicroBatches: []int{rapid.IntRange(1, 4).Draw(t, "micro-batches")},
			Devices: len(machine.Devices), Schedules: []string{"1f1b"}, Limit: rapid.Int64Range(300,
				4000).Draw(t, "limit"),
			State: rapid.IntRange(0, 1).Draw(t, "state")}
		p := oneSpace(t, m.Chain, machine, w, "1f1b", 1, w.MicroBatches[0], m.Sent, m.Held)
		best := int64(math.MaxInt64)
		everyCut(units, len(machine.Devices), func(c cut) {
			problem := p.problem(c)
			for s := range problem.Stages {
				own := int64(0)
				for i := c[s]; i < c[s+1]; i++ {
					own += m.Chain.Layers[i].WeightGradient + m.Held[i]
				}
				if problem.Stages[s].Memory.Unplaced != own {
					t.Fatalf("stage %d of %v holds %d bytes, want %d", s, c,
						problem.Stages[s].Memory.Unplaced, own)
				}
			}
			if took, fits, _ := judged(t, p, c); fits {
				best = min(best, took)
			}
		})
		r := must.Get(Search(context.Background(), Profile{Measured: []Costs{m}}, machine, w))(t)
		switch {
		case r.Best == nil && best != math.MaxInt64:
			t.Fatalf("no plan, where one takes %d", best)
		case r.Best != nil && (int64(r.Best.Step) > best || r.LowerBound > r.Best.Step):
			t.Fatalf("the best takes %v, bound %v, and of all cuts one takes %d", r.Best.Step, r.LowerBound,
				best)
		}
	})
}

// A cut sends what the profile says, and not what a backward has to hold.
func TestACutIsWhereLittleIsSent(t *testing.T) {
	var c remat.Chain
	for range 4 {
		c.Layers = append(c.Layers, remat.Layer{Name: "frozen", Forward: 100, ForwardNoGrad: 100})
	}
	// a byte a microsecond
	machine := Machine{Devices: []Device{{Name: "a"}, {Name: "b"}}, Links: []Link{{Bandwidth: 1e6}}}
	for _, test := range []struct {
		sent []int64
		want int
	}{{nil, 2}, {[]int64{0, 500, 500, 10, 0}, 3}, {[]int64{0, 10, 500, 500, 0}, 1}} {
		r, err := Search(context.Background(), Profile{Measured: []Costs{{Chain: c, Sent: test.sent}}},
			machine, Options{MicroBatches: []int{4}, Devices: 2, Schedules: []string{"gpipe"}})
		if err != nil || r.Best == nil || r.Best.Balance[0] != test.want {
			t.Errorf("%v: %+v, %v, want a cut after %d", test.sent, r, err, test.want)
		}
	}
}
