package pipe

import "penstock/planner"

// Recomputed is the share of so many micro-batches that the policy recomputes.
func (k Checkpoint) Recomputed(microBatches int) float64 {
	if microBatches < 1 {
		return 0
	}
	n := 0
	for i := range microBatches {
		if planner.Policy(k.String()).Recomputes(i) {
			n++
		}
	}
	return float64(n) / float64(microBatches)
}

// Held says of how many micro-batches a stage holds the graph, with every activation that backward
// needs, and of how many more no more than what the stage was sent, when it holds most. In GPipe
// every forward comes before the first backward: what is not recomputed is held then. If all is,
// the most is held when the first recomputation has run.
func (k Checkpoint) Held(microBatches int) (graphs, inputs int) {
	if k == Optimal { // at the least
		k = Always
	}
	for i := range microBatches {
		if !planner.Policy(k.String()).Recomputes(i) {
			graphs++
		}
	}
	graphs = max(graphs, min(1, microBatches))
	return graphs, microBatches - graphs
}
