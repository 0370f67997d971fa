package plan

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"penstock.example/remat"
)

// seeded is a chain whose costs vary.
func seeded(seed uint64, units int) remat.Chain {
	r := rand.New(rand.NewPCG(seed, 7))
	c := remat.Chain{Input: 20}
	for i := range units {
		f := float64(10 + r.IntN(90))
		l := remat.Layer{Name: fmt.Sprint("u", i), Forward: f, ForwardNoGrad: f, Backward: f * (1 + 2*r.Float64()), Output: int64(10 + r.IntN(90)), WeightGradient: int64(r.IntN(40))}
		l.Saved, l.Gradient = l.Output+int64(r.IntN(300)), l.Output
		c.Layers = append(c.Layers, l)
	}
	return c
}

// Who looks at two of cut, schedule and memory misses what looks at all three finds.
func TestWhoLooksAtTwoOfThreeLoses(t *testing.T) {
	ctx := context.Background()
	best := func(p *space) found {
		f, err := p.best(ctx, none, none)
		if err != nil {
			t.Fatal(f, err)
		}
		return f
	}
	took := func(p *space, c cut) int64 {
		step, err := p.evaluate(ctx, c)
		if err != nil {
			t.Fatal(err)
		}
		return step
	}
	// Times and memory without the schedule: the slowest stage is as fast as can be.
	c := seeded(1, 8)
	var costs []float64
	for _, l := range c.Layers {
		costs = append(costs, l.Forward+l.Backward)
	}
	counts, err := Partition(costs, 3)
	if err != nil {
		t.Fatal(err)
	}
	p := oneSpace(t, c, devices(3, 0), Options{}, "1f1b", 1, 6)
	if joint, even := best(p).step, took(p, cutOf(counts)); joint >= even {
		t.Errorf("all three: %d ns, without the schedule %d", joint, even)
	}
	// Cut and schedule, and memory afterwards.
	c = seeded(6, 8)
	free := best(oneSpace(t, c, devices(3, 0), Options{}, "1f1b", 1, 3))
	p = oneSpace(t, c, devices(3, 0), Options{Limit: 900}, "1f1b", 1, 3)
	joint := best(p).step
	if after := took(p, free.cut); joint >= after {
		t.Errorf("all three: %d ns, with memory afterwards %d", joint, after)
	}
}
