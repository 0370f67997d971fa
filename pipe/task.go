package pipe

import (
	"errors"
	"fmt"
	"slices"

	"penstock.example/nn"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// A mini-batch is the task of a graphRun: what its actions do, what a failed run puts back, and
// what waits on links.

// do performs an action on its stage.
func (r *minibatch) do(c *torch.Ctx, a schedule.Action) error {
	switch a.Kind {
	case schedule.Forward:
		r.forward(c, a)
	case schedule.Recompute:
		r.recompute(c, a)
	case schedule.Backward, schedule.BackwardInput:
		r.backward(c, a)
	case schedule.BackwardWeight:
		r.states[a.Stage][a.MicroBatch].execution.Weights(c)
	case schedule.Reduce:
		return r.reduce(c, a)
	case schedule.SendActivation:
		return r.sendActivation(c, a)
	case schedule.ReceiveActivation:
		return r.receiveActivation(c, a)
	case schedule.SendGradient:
		return r.sendGradient(c, a)
	case schedule.ReceiveGradient:
		return r.receiveGradient(c, a)
	default:
		return fmt.Errorf("pipe: %v: a pipe does not do this; want a program without it", a)
	}
	return nil
}

func (r *minibatch) expect(c *torch.Ctx, send schedule.Action) error { return r.link.Expect(c, send) }

// expects is false where a plan counts what every device holds: it counts what is received from the
// receive on.
func (r *minibatch) expects() bool {
	return r.p.remote != nil && !r.p.optimal() && (r.prepared == nil || r.prepared.plan.Program.Capacity != schedule.Meet)
}

func (r *minibatch) settle(send schedule.Action) error { return r.link.Settle(send) }

func (r *minibatch) meets(send schedule.Action) bool { return r.link.Meets(send) }

func (r *minibatch) abort(err error) {
	r.link.Abort()
	r.p.lost(err) // the first failure is the one that counts
}

// begin notes what a training run may change on a worker's stages, before the first action there.
func (r *minibatch) begin(worker int) {
	if !r.training {
		return
	}
	for _, s := range r.p.stages {
		if s.worker == worker {
			s.remember()
		}
	}
	if worker == r.p.stages[0].worker && r.inputGrad {
		r.ungradient = nil
		for _, v := range r.inputs {
			if v.Tensor.RequiresGrad() && !v.Tensor.HasGrad() {
				r.ungradient = append(r.ungradient, v)
			}
		}
	}
}

// end gathers the outputs on the worker of the last stage, after its last action.
func (r *minibatch) end(c *torch.Ctx, worker int) {
	if r.gathers && worker == r.p.stages[len(r.p.stages)-1].worker {
		r.outputs = r.gather(c)
	}
}

// undoes says whether a failed run is undone. If it is, every worker waits until the run has ended
// on all of them.
func (r *minibatch) undoes() bool { return r.training }

// undo restores what a failed run has changed on a worker's stages.
func (r *minibatch) undo(worker int) {
	for _, s := range r.p.stages {
		if s.worker == worker {
			s.restore()
		}
	}
	if worker == r.p.stages[0].worker {
		for _, v := range r.ungradient {
			v.Tensor.SetGradOf(nil)
		}
	}
}

func (r *minibatch) layer(a schedule.Action, err error) string {
	running, around := r.states[a.Stage][a.MicroBatch].execution.Running(), ""
	if r.batch.Within != nil {
		around = r.batch.Within.Path()
	}
	var e *torch.Error
	switch {
	case running == nil || a.Kind.Transfer():
		return ""
	case running.Path() != around: // in a forward, or nn.Checkpointed ran it again
		return running.Path()
	case errors.As(err, &e):
		return nn.LayerOf(running.Spans(), e.Sequence)
	}
	return ""
}

// gather concatenates the micro-batches' outputs by rows. Each output must have rows.
func (r *minibatch) gather(c *torch.Ctx) (out []*torch.Tensor) {
	c.SetGrad(false)
	states := r.states[len(r.p.stages)-1]
	lists := make([][]*torch.Tensor, len(states))
	refuse := func(format string, args ...any) {
		panic(&torch.Error{Op: "gather", Device: c.Device(), Message: fmt.Sprintf(format, args...)})
	}
	for i := range states {
		if lists[i] = states[i].sent; lists[i] == nil {
			lists[i] = states[i].out
		}
		if len(lists[i]) != len(lists[0]) {
			refuse("micro-batch 0 gave a tuple of %d and micro-batch %d one of %d; a model gives the same number for "+
				"every micro-batch",
				len(lists[0]), i, len(lists[i]))
		}
	}
	if r.batch.Within != nil {
		once, at := torch.Distinct(lists[0])
		for i, t := range once {
			if once[i] = t; states[0].sent == nil {
				once[i] = c.Keep(c.Detach(t))
			}
		}
		states[0].sent = nil
		for _, k := range at {
			out = append(out, once[k])
		}
		return out
	}
	for j := range lists[0] {
		column := make([]*torch.Tensor, len(lists))
		for i := range lists {
			if column[i] = lists[i][j]; len(column[i].Shape()) == 0 {
				refuse("output %d is a number, %v, which has no rows to join over micro-batches; let the last layer "+
					"give each row its value",
					j, column[i])
			}
		}
		parts, start := make([]rows, len(column)), int64(0)
		for i, t := range column {
			parts[i] = rows{start, t.Size(0)}
			start += parts[i].length
		}
		r.joined = append(r.joined, parts)
		out = append(out, c.Cat(column, 0))
	}
	for i := range states {
		torch.FreeAll(states[i].sent)
		states[i].sent = nil
	}
	for _, t := range out {
		c.Keep(t)
	}
	return out
}

// waits appends to a list what an action has made for other stages.
func (r *minibatch) waits(list []outgoing, a schedule.Action) []outgoing {
	stage := r.p.stages[a.Stage]
	state := &r.states[a.Stage][a.MicroBatch]
	switch a.Kind {
	case schedule.Forward:
		if !r.last(a.Stage) {
			list = append(list, outgoing{tensors: state.sent, kind: schedule.ReceiveActivation, stage: a.Stage + 1})
		}
		for i, p := range stage.skips {
			if sent := state.skips[i].sent; sent != nil && len(p.to) > 0 {
				list = append(list, outgoing{tensors: []*torch.Tensor{sent}, kind: schedule.ReceiveActivation, stage: p.to[0].stage, others: p.to[1:]})
			}
		}
	case schedule.Backward, schedule.BackwardInput:
		if a.Stage > 0 {
			list = append(list, outgoing{tensors: state.inGrad, kind: schedule.ReceiveGradient, stage: a.Stage - 1})
		}
		for i, p := range stage.skips {
			if p.from.stage >= 0 {
				list = append(list, outgoing{tensors: state.skips[i].back, kind: schedule.ReceiveGradient, stage: p.from.stage})
			}
		}
		for i, t := range stage.ties {
			if t.from.stage >= 0 {
				list = append(list, outgoing{tensors: []*torch.Tensor{state.ties[i].back}, kind: schedule.ReceiveGradient, stage: t.from.stage})
			}
		}
	}
	return list
}

// ofBatch reports whether a tensor is in the memory of the batch.
func (r *minibatch) ofBatch(t *torch.Tensor) bool {
	memory, _ := t.Storage()
	return slices.Contains(r.memory, memory)
}
