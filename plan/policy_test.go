package plan_test

import (
	"testing"

	"penstock.example/internal/must"
	"penstock.example/plan"
	"penstock.example/schedule"
)

// TestHeld replays the schedule: after each action, how many graphs and how many inputs alone are
// there.
func TestHeld(t *testing.T) {
	for _, policy := range []plan.Policy{plan.ExceptLast, plan.Never, plan.Always} {
		for m := 1; m <= 9; m++ {
			recomputed := func(i int) bool {
				return policy == plan.Always || policy == plan.ExceptLast &&
					i > 0
			}
			p := must.Get(schedule.GPipe(schedule.Config{Stages: 1, MicroBatches: m,
				Recompute: func(_, i int) bool { return recomputed(i) }}))(t)
			type held struct{ graphs, inputs int }
			var now, most held
			count := 0
			for _, a := range p.Workers[0] {
				switch {
				case a.Kind == schedule.Forward && recomputed(a.MicroBatch):
					now.inputs++
				case a.Kind == schedule.Forward:
					now.graphs++
				case a.Kind == schedule.Recompute:
					now.graphs, now.inputs = now.graphs+1, now.inputs-1
					count++
				case a.Kind == schedule.Backward:
					now.graphs--
				}
				// a graph is more than an input
				if now.graphs > most.graphs || now.graphs == most.graphs && now.inputs > most.inputs {
					most = now
				}
			}
			if graphs, inputs := policy.Held(m); (held{graphs, inputs}) != most {
				t.Errorf("%v of %d: %d graphs and %d inputs, the schedule holds %+v", policy, m, graphs,
					inputs, most)
			}
			if got, want := policy.Recomputed(m), float64(count)/float64(m); got != want {
				t.Errorf("%v of %d: %v are recomputed, the schedule recomputes %v", policy, m, got, want)
			}
		}
		if graphs, inputs := policy.Held(0); graphs != 0 || inputs != 0 || policy.Recomputed(0) != 0 {
			t.Errorf("%v holds %d graphs and %d inputs of nothing", policy, graphs, inputs)
		}
	}
}
