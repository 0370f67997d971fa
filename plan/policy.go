package plan

// Policy says for which micro-batches a stage keeps only its input in forward and recomputes the
// rest before backward.
type Policy string

const (
	// ExceptLast recomputes every micro-batch except 0, which has the first backward and would be
	// recomputed at once.
	ExceptLast Policy = "except_last"
	// Never keeps everything and recomputes nothing.
	Never Policy = "never"
	// Always recomputes every micro-batch.
	Always Policy = "always"
	// Optimal chooses for each layer and micro-batch, so that a step is shortest under a limit in bytes.
	Optimal Policy = "optimal"
)

// Policies lists all policies.
var Policies = []Policy{ExceptLast, Never, Always, Optimal}

// Recomputes reports whether the policy recomputes a micro-batch. For Optimal, ask the plan instead.
func (p Policy) Recomputes(microBatch int) bool {
	return p == Always || p == ExceptLast && microBatch > 0
}

// Recomputed returns the share of micro-batches that the policy recomputes, from 0 to 1. For Optimal,
// ask the plan instead.
func (p Policy) Recomputed(microBatches int) float64 {
	if microBatches < 1 {
		return 0
	}
	n := 0
	for i := range microBatches {
		if p.Recomputes(i) {
			n++
		}
	}
	return float64(n) / float64(microBatches)
}

// Held returns how many graphs, with all activations for backward, a stage holds at its fullest in
// GPipe, and of how many more micro-batches it holds only the input. For Optimal it returns the least.
func (p Policy) Held(microBatches int) (graphs, inputs int) {
	if graphs = min(1, microBatches); p != Optimal && !p.Recomputes(1) {
		graphs = microBatches
	}
	return graphs, microBatches - graphs
}
