package plan

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"pgregory.net/rapid"

	"penstock.example/internal/must"
	"penstock.example/remat"
	"penstock.example/schedule"
)

// randomChain draws a chain of units; of some all cost the same.
func randomChain(t *rapid.T, units int) remat.Chain {
	bytes := func(name string, most int64) int64 { return rapid.Int64Range(0, most).Draw(t, name) }
	micros := func(name string) float64 { return float64(rapid.IntRange(1, 60).Draw(t, name)) }
	c := remat.Chain{Input: bytes("input", 50), Loss: remat.Loss{Backward: micros("loss") / 10}}
	equal := rapid.IntRange(0, 2).Draw(t, "equal units") == 0
	for i := range units {
		l := remat.Layer{Name: fmt.Sprint("unit", i), Forward: micros("forward"),
			Backward: micros("backward")}
		l.ForwardNoGrad = l.Forward * 0.875
		if rapid.Bool().Draw(t, "adds") {
			l.BackwardLater = micros("later")
		}
		l.Output = bytes("output", 100)
		l.Saved, l.Gradient = l.Output+bytes("saved", 300), l.Output
		l.WeightGradient, l.BackwardTmp = bytes("weights", 80), bytes("tmp", 20)
		if equal && i > 0 {
			l = c.Layers[0]
		}
		c.Layers = append(c.Layers, l)
	}
	if rapid.Bool().Draw(t, "deferred is known") {
		for range units {
			c.Deferred = append(c.Deferred, remat.Deferred{Bytes: bytes("deferred", 100),
				Share:  float64(rapid.IntRange(0, 8).Draw(t, "share")) / 8,
				Longer: float64(rapid.IntRange(0, 9).Draw(t, "longer"))})
		}
	}
	return c
}

// randomMachine draws devices, some of other speeds, and links, which may cost nothing.
func randomMachine(t *rapid.T, devices int) Machine {
	var m Machine
	equal := rapid.Bool().Draw(t, "equal devices")
	for i := range devices {
		d := Device{Name: fmt.Sprint("d", i),
			Speed: rapid.SampledFrom([]float64{1, 1, 2, 0.5}).Draw(t, "speed")}
		if equal {
			d.Speed = 1
		}
		m.Devices = append(m.Devices, d)
	}
	if rapid.Bool().Draw(t, "links") {
		m.Links = []Link{{Latency: time.Duration(rapid.IntRange(0, 30).Draw(t, "latency")) * time.Microsecond,
			Bandwidth: float64(rapid.IntRange(1, 20).Draw(t, "bandwidth")) * 1e6}}
	}
	return m
}

// oneSpace is the space of a schedule on a machine.
func oneSpace(t must.T, c remat.Chain, m Machine, w Options, name string, virtual,
	chunks int, more ...[]int64) *space {
	s := must.Get(schedule.Named(name))(t)
	all := m.workers(1, m.Parts(1), w.Limit)
	var sent, held []int64
	if len(more) > 0 {
		sent, held = more[0], more[1]
	}
	workers, link := m.pipeline(all, len(all), 1)
	p, err := newSpace(w, s, Costs{Chain: c, Sent: sent, Held: held}, virtual, chunks, 1, workers, link)
	if err == nil {
		err = p.prepare()
	}
	must.Do(t, err)
	return p
}

// everyCut calls visit for all cuts into so many stages. The cut changes from call to call.
func everyCut(units, stages int, visit func(c cut)) {
	c := make(cut, stages+1)
	c[stages] = units
	var place func(s int)
	place = func(s int) {
		if s == stages {
			visit(c)
			return
		}
		for i := c[s-1] + 1; i <= units-(stages-s); i++ {
			c[s] = i
			place(s + 1)
		}
	}
	place(1)
}

// judged is the time of a step of a cut as package schedule says of the plan that package planner makes,
// and whether it fits, and if so whether values may not wait on its links.
func judged(t must.T, p *space, c cut) (took int64, fits, meets bool) {
	problem := p.problem(c)
	problem.First = true
	plan, err := Solve(context.Background(), problem)
	if _, short := err.(*MemoryError); short {
		return 0, false, false
	}
	must.Do(t, err)
	for w, d := range plan.Devices {
		if limit := p.workers[w].bytes; limit > 0 && d.Peak > limit {
			t.Fatal("a plan above its limit")
		}
	}
	times := make([]stageTimes, p.stages())
	for s := range times {
		times[s] = p.plannedTimes(plan, s, c)
	}
	line := must.Get(p.links(c).Simulate(plan.Program, durations(times)))(t)
	return int64(line.Makespan()), true, plan.Program.Capacity != 0
}

// virtuals are the numbers of stages of each device that a schedule is tried with.
func virtuals(s schedule.Schedule) []int {
	if s.Virtual > 0 {
		return []int{s.Virtual}
	}
	return []int{1, 2, 3}
}

// seeded is a chain whose costs vary.
func seeded(seed uint64, units int) remat.Chain {
	r := rand.New(rand.NewPCG(seed, 7))
	c := remat.Chain{Input: 20}
	for i := range units {
		f := float64(10 + r.IntN(90))
		l := remat.Layer{Name: fmt.Sprint("u", i), Forward: f, ForwardNoGrad: f,
			Backward: f * (1 + 2*r.Float64()), Output: int64(10 + r.IntN(90)), WeightGradient: int64(r.IntN(40))}
		l.Saved, l.Gradient = l.Output+int64(r.IntN(300)), l.Output
		c.Layers = append(c.Layers, l)
	}
	return c
}

// devices is a machine of equal devices.
func devices(n int, bytes int64) (m Machine) {
	for i := range n {
		m.Devices = append(m.Devices, Device{Name: fmt.Sprint("d", i), Bytes: bytes})
	}
	return m
}
