package planner

// Policy says for which micro-batches a stage keeps only its input in forward and recomputes the
// rest before backward.
type Policy string

const (
	// ExceptLast recomputes every micro-batch except the one whose backward comes first, because it
	// would be recomputed at once. In ascending order that is micro-batch 0. With one micro-batch
	// nothing is recomputed.
	ExceptLast Policy = "except_last"
	// Never keeps everything and recomputes nothing.
	Never Policy = "never"
	// Always recomputes every micro-batch.
	Always Policy = "always"
	// Optimal chooses for each layer and micro-batch what to keep and what to recompute, so that a
	// step is shortest under a limit in bytes.
	Optimal Policy = "optimal"
)

// Policies lists all policies.
var Policies = []Policy{ExceptLast, Never, Always, Optimal}

// Recomputes says whether the policy recomputes a micro-batch. For Optimal, ask the plan instead.
func (p Policy) Recomputes(microBatch int) bool {
	return p == Always || p == ExceptLast && microBatch > 0
}
