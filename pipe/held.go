package pipe

import "penstock/planner"

// Recomputed is the share of micro-batches that the policy recomputes, from 0 to 1.
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

// Held returns how many graphs, with all activations for backward, a stage holds when it holds
// most, and of how many more micro-batches it holds the inputs alone. In GPipe all forwards come
// before the first backward, so that every graph that is not recomputed is held then. If all
// micro-batches are recomputed, most is held after the first recomputation.
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
