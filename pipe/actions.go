package pipe

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"penstock.example/internal/engine"
	"penstock.example/internal/segment"
	"penstock.example/remat"
	"penstock.example/schedule"
	"penstock.example/torch"
)

func (r *run) do(c *torch.Ctx, a schedule.Action) error {
	switch a.Kind {
	case schedule.Forward:
		r.forward(c, a)
	case schedule.Recompute:
		r.recompute(c, a)
	case schedule.Backward, schedule.BackwardInput:
		r.backward(c, a)
	case schedule.BackwardWeight:
		r.state(a).execution.Weights(c)
	case schedule.SendActivation:
		return r.sendActivation(c, a)
	case schedule.ReceiveActivation:
		return r.receiveActivation(c, a)
	case schedule.SendGradient:
		return r.sendGradient(c, a)
	case schedule.ReceiveGradient:
		return r.receiveGradient(c, a)
	}
	return nil
}

// layer is the name of the layer in which the action failed with err, or "".
func (r *run) layer(a schedule.Action, err error) string {
	running, around := r.state(a).execution.Running(), ""
	if r.batch.Within != nil {
		around = r.batch.Within.Path()
	}
	var e *torch.Error
	switch {
	case running == nil || a.Kind.Transfer():
		return ""
	case running.Path() != around: // in a forward, or in a recomputation of nn.Checkpointed
		return running.Path()
	case errors.As(err, &e):
		return running.LayerOf(e.Sequence)
	}
	return ""
}

// forward performs the plan's operations on a micro-batch before the loss, and keeps the values for
// other stages.
func (r *run) forward(c *torch.Ctx, a schedule.Action) {
	stage, state := r.p.stages[a.Stage], r.state(a)
	state.execution.Final = !r.withBackward
	if a.Stage == 0 {
		r.viewBatch(c, a.MicroBatch)
	}
	state.execution.Send(0, state.in)
	state.in = segment.Arrival{}
	r.perform(c, a, r.operations(a.Stage, a.MicroBatch).forward)
	xs, skips := state.execution.Take(state.execution.Units())
	state.sent = xs
	if each := r.batch.Each; r.last(a.Stage) && (r.loss != nil || each != nil) {
		if each == nil {
			r.readLoss(c, state)
		} else {
			c.Synchronize()
			each(r.parts[a.MicroBatch].start, xs)
		}
		torch.FreeAll(xs)
		state.sent = nil
	}
	for i, p := range stage.skips {
		if len(p.to) > 0 {
			state.skips[i].sent, state.skips[i].left = skips[p.place], len(p.to)
		}
	}
	if d := r.deferred; d != nil && a.MicroBatch == len(r.parts)-1 {
		d[a.Stage].Commit(r.context(c, a.Stage, a.MicroBatch, segment.Run{}))
	}
}

// recompute performs the plan's operations between the loss and the arrival of the gradient.
func (r *run) recompute(c *torch.Ctx, a schedule.Action) {
	// The plan counts the gradient of the loss from here on.
	if r.p.optimal() && r.loss != nil && r.last(a.Stage) {
		r.setOutputGrads(c, a, r.state(a))
	}
	r.perform(c, a, r.operations(a.Stage, a.MicroBatch).recompute)
}

func (r *run) perform(c *torch.Ctx, a schedule.Action, ops []remat.Op) {
	defer c.SetAutocast(c.SetAutocast(r.p.cfg.Autocast))
	execution := &r.state(a).execution
	execution.Retain = r.retain
	for _, op := range ops {
		execution.Do(c, op)
		if op.Kind == remat.ForwardSave && op.Layer == execution.Units()-1 && r.last(a.Stage) {
			if ys, _, _ := execution.Output(); !slices.ContainsFunc(ys, (*torch.Tensor).RequiresGrad) {
				panic(&torch.Error{Op: "Forward", Device: c.Device(), Err: errNoGradient})
			}
		}
	}
}

var errNoGradient = errors.New("the model's output needs no gradient: all before it is frozen or detached; " +
	"unfreeze a layer, or use Infer")

// backward adds to the gradients of the stage's parameters, and keeps the gradients for earlier
// stages. schedule.BackwardInput leaves all parameters but ties to schedule.BackwardWeight.
func (r *run) backward(c *torch.Ctx, a schedule.Action) {
	stage, state := r.p.stages[a.Stage], r.state(a)
	c.SetGrad(false)
	if r.last(a.Stage) && state.outGrad == nil {
		r.setOutputGrads(c, a, state)
	}
	skips := make([][]*torch.Tensor, stage.leaving)
	for i, p := range stage.skips {
		if p.received() {
			continue
		}
		for k, list := range state.skips[i].grads {
			skips[p.place] = append(skips[p.place], list...)
			state.skips[i].grads[k] = nil
		}
	}
	// With the policy Optimal plans count this gradient, although no layer here or before needs it.
	if !r.inputGrad && r.p.firstTrained >= stage.first+len(stage.Layers) {
		torch.FreeAll(slices.Concat(append(skips, state.outGrad)...))
		clear(skips)
		state.outGrad = nil
	}
	state.execution.GiveGrads(state.execution.Units(), state.outGrad, skips)
	state.outGrad = nil
	for i := range stage.ties {
		state.execution.GiveTie(i, state.ties[i].later)
		state.ties[i].later = nil
	}
	defer stage.dropReplicaGrads() // a backward that fails has left some
	state.execution.Defer = a.Kind == schedule.BackwardInput
	r.perform(c, a, r.operations(a.Stage, a.MicroBatch).backward)
	r.takeInputGrads(c, a, stage, state)
}

// setOutputGrads sets the gradients of the last stage's output.
func (r *run) setOutputGrads(c *torch.Ctx, a schedule.Action, state *microBatch) {
	if r.loss != nil {
		if share := r.lossShare(a.MicroBatch) * cmp.Or(r.batch.LossScale, 1); share != 0 {
			state.outGrad = []*torch.Tensor{c.Keep(c.Fill_(c.Empty(r.lossType), share))}
		}
		return
	}
	if r.batch.Within != nil {
		state.outGrad, r.grads = r.grads, nil
		return
	}
	out, _, _ := state.execution.Output()
	state.outGrad = make([]*torch.Tensor, len(out))
	for j, g := range r.grads {
		if g != nil {
			state.outGrad[j] = c.Keep(r.joined[j][a.MicroBatch].part(c, Value{Tensor: g}))
		}
	}
}

func (r *run) takeInputGrads(c *torch.Ctx, a schedule.Action, stage *Stage, state *microBatch) {
	xs, skips := state.execution.TakeGrads(0)
	if state.inGrad = xs; a.Stage == 0 {
		r.giveInputGrads(c, a.MicroBatch, state)
	}
	for i, p := range stage.skips {
		if p.received() && p.place < len(skips) { // false if the plan has no backward of the first unit
			state.skips[i].popGrads = skips[p.place]
		}
	}
	for i, t := range stage.ties {
		if t.received() {
			state.ties[i].sum = c.Keep(c.TakeGrad(t.tensor()))
		}
	}
}

// giveInputGrads adds the gradients of a micro-batch's input to the batch's. A batch within a layer
// keeps them in the run.
func (r *run) giveInputGrads(c *torch.Ctx, microBatch int, state *microBatch) {
	if r.batch.Within != nil {
		r.inputGrads, state.inGrad = state.inGrad, nil
		return
	}
	var parts, grads []*torch.Tensor
	c.SetGrad(true)
	for i, g := range state.inGrad {
		if g != nil {
			parts = append(parts, r.parts[microBatch].part(c, r.batch.Input[i]))
			grads = append(grads, c.Adopt(g))
		}
	}
	state.inGrad = nil
	if len(parts) > 0 {
		c.Backward(parts, grads, false)
	}
	c.SetGrad(false)
}

// gather concatenates the micro-batches' outputs by rows. Each output must have rows.
func (r *run) gather(c *torch.Ctx) (out []*torch.Tensor) {
	c.SetGrad(false)
	states := r.states[len(r.p.stages)-1]
	lists := make([][]*torch.Tensor, len(states))
	refuse := func(format string, args ...any) {
		panic(&torch.Error{Op: "gather", Device: c.Device(), Message: fmt.Sprintf(format, args...)})
	}
	for i := range states {
		lists[i] = states[i].output()
		if len(lists[i]) != len(lists[0]) {
			refuse("micro-batch 0 gave a tuple of %d and micro-batch %d one of %d; want the same number",
				len(lists[0]), i, len(lists[i]))
		}
	}
	if r.batch.Within != nil {
		once, at := engine.Distinct(lists[0])
		for i, t := range once {
			if states[0].sent == nil {
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
				refuse("output %d, %v, has no rows to join; let the last layer make a value for each row",
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

// lossShare is a micro-batch's share in the mean loss of the batch, or of all batches of the
// update. It is 1 for a sum. With a share of 0 the loss may be NaN, and nothing goes backward.
func (r *run) lossShare(microBatch int) float64 {
	if r.loss.Reduction() == torch.ReduceSum {
		return 1
	}
	return r.weights[microBatch] / r.weight
}

func (r *run) readLoss(c *torch.Ctx, state *microBatch) {
	loss := state.output()[0]
	if r.lossType = loss.DType(); c.Device().Kind == torch.KindCPU {
		state.loss = number(c, loss)
	} else {
		state.reading = c.Keep(engine.ToHost(c, loss))
	}
}

func (r *run) lossOf(microBatch int) float64 {
	state := &r.states[len(r.p.stages)-1][microBatch]
	if t := state.reading; t != nil {
		c := torch.NewCtx(torch.Options{})
		defer c.Close()
		return number(c, t)
	}
	return state.loss
}

func number(c *torch.Ctx, t *torch.Tensor) float64 {
	if t.DType() == torch.Float32 {
		return float64(torch.Item[float32](t))
	}
	return torch.Item[float64](c.To(c.Detach(t), torch.Float64))
}
