package planner

// Policy says for which micro-batches a stage keeps only its input in forward and recomputes the
// rest before backward.
type Policy string

const (
	// ExceptLast recomputes every micro-batch but the one whose backward comes first, which would
	// be recomputed at once. In ascending order that is micro-batch 0. With one micro-batch,
	// nothing is recomputed.
	ExceptLast Policy = "except_last"
	// Never keeps everything.
	Never Policy = "never"
	// Always recomputes every micro-batch.
	Always Policy = "always"
	// Optimal keeps and recomputes, layer by layer and micro-batch by micro-batch, what makes a
	// step shortest under a limit in bytes.
	Optimal Policy = "optimal"
)

// Policies are all there are.
var Policies = []Policy{ExceptLast, Never, Always, Optimal}

// Recomputes says whether the policy, other than Optimal, recomputes a micro-batch.
func (p Policy) Recomputes(microBatch int) bool {
	return p == Always || p == ExceptLast && microBatch > 0
}
