package pipe

import "penstock/remat/plan"

// script is what a stage does with a micro-batch: the operations of a rematerialisation plan, parted where the schedule parts them. Operations are about units of a segment.
type script struct {
	forward   []plan.Op // before the stage's output goes on
	recompute []plan.Op // before the gradient of the output is needed
	backward  []plan.Op
}

var (
	keepAll   = script{forward: []plan.Op{{Kind: plan.ForwardSave}}, backward: []plan.Op{{Kind: plan.Backward}}}
	keepInput = script{forward: []plan.Op{{Kind: plan.ForwardKeep}}, recompute: []plan.Op{{Kind: plan.ForwardSave}}, backward: []plan.Op{{Kind: plan.Backward}}}
	passing   = script{forward: []plan.Op{{Kind: plan.Forward}}} // no backward follows
)

// script is what a stage of one unit does by the policy.
func (k Checkpoint) script(microBatch int) script {
	if k.recompute(microBatch) {
		return keepInput
	}
	return keepAll
}
