package pipe

import "penstock/remat"

// script is what a stage does with a micro-batch: the operations of a rematerialisation plan, parted where the schedule parts them. Operations are about units of a segment.
type script struct {
	forward   []remat.Op // up to the loss step, at which the stage's output goes on
	recompute []remat.Op // before the gradient of the output is needed
	backward  []remat.Op
}

var (
	keepAll   = script{forward: []remat.Op{{Kind: remat.ForwardSave}, {Kind: remat.LossStep}}, backward: []remat.Op{{Kind: remat.Backward}}}
	keepInput = script{forward: []remat.Op{{Kind: remat.ForwardKeep}, {Kind: remat.LossStep}}, recompute: []remat.Op{{Kind: remat.ForwardSave}}, backward: []remat.Op{{Kind: remat.Backward}}}
	passing   = script{forward: []remat.Op{{Kind: remat.Forward}}} // no backward follows
)

// scriptOf is what a stage does with a micro-batch: what was planned, or what its policy says.
func (p *Pipe) scriptOf(planned *planned, stage, microBatch int) script {
	if planned != nil && planned.scripts[stage] != nil {
		return planned.scripts[stage][microBatch]
	}
	return p.cfg.policies[stage].script(microBatch)
}

// script is what a stage of one unit does by the policy.
func (k Checkpoint) script(microBatch int) script {
	if k.recompute(microBatch) {
		return keepInput
	}
	return keepAll
}

// scriptOf parts the operations of a plan. Units of the prologue, which are not in the plan, run first.
func scriptOf(ops []remat.Op, prologue int) (s script) {
	for i := range prologue {
		s.forward = append(s.forward, remat.Op{Kind: remat.Forward, Layer: i})
	}
	into := &s.forward
	for _, op := range ops {
		switch {
		case op.Kind == remat.LossStep:
			s.forward = append(s.forward, op)
			into = &s.recompute
			continue
		case op.Kind == remat.Backward:
			into = &s.backward
		}
		op.Layer += prologue
		*into = append(*into, op)
	}
	return s
}
