package schedule

import (
	"testing"

	"pgregory.net/rapid"

	"penstock.example/internal/must"
)

// stuckAt performs all that can be done without one action, and returns where a worker is stuck.
func stuckAt(g *Graph, without, worker int) int {
	done := make([]bool, len(g.Actions))
	next := append([]int(nil), g.First[:len(g.First)-1]...)
	for moved := true; moved; {
		moved = false
		for w := range next {
			for next[w] < g.First[w+1] && next[w] != without {
				ready := true
				for _, dep := range g.Deps[next[w]] {
					ready = ready && done[dep]
				}
				if !ready {
					break
				}
				done[next[w]] = true
				next[w]++
				moved = true
			}
		}
	}
	return next[worker]
}

// TestLatestReceives: the sender's worker gets, without the receive, exactly to the action that is
// said, in programs of all kinds.
func TestLatestReceives(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		stages := rapid.IntRange(1, 5).Draw(t, "stages")
		config := Config{
			Stages: stages, MicroBatches: rapid.IntRange(1, 4).Draw(t, "micro-batches"),
			Capacity: rapid.SampledFrom([]int{0, 1, 2, Meet}).Draw(t, "capacity"),
		}
		recomputed := rapid.SliceOfN(rapid.Bool(), stages*config.MicroBatches, -1).Draw(t, "recomputed")
		config.Recompute = func(stage, microBatch int) bool {
			return recomputed[stage*config.MicroBatches+microBatch]
		}
		for from := range stages {
			for to := from + 2; to < stages; to++ {
				if rapid.Bool().Draw(t, "skip") {
					config.Skips = append(config.Skips, Edge{from, to})
				}
			}
		}
		if rapid.Bool().Draw(t, "shared") {
			for s := range stages {
				config.Worker = append(config.Worker, s%max(stages/2, 1))
			}
		}
		p := must.Get(GPipe(config))(t)
		p = p.Part(rapid.SampledFrom([]Phase{Whole, ForwardOnly, BackwardOnly}).Draw(t, "phase"))
		g := p.Graph()
		latest := g.LatestReceives()
		for id, a := range g.Actions {
			want := -1
			if a.Kind.Receive() {
				if from, ok := g.IndexOf(a.Matching()); ok {
					// which does the receive itself
					if want = stuckAt(g, id, g.Worker[from]); g.Worker[id] == g.Worker[from] {
						want++
					}
				}
			}
			if latest[id] != want {
				t.Fatalf("%v: %d, want %d, in\n%v", a, latest[id], want, p)
			}
		}
	})
}
