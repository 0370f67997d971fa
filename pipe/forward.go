package pipe

import (
	"penstock/nn"
	"penstock/remat"
	"penstock/schedule"
	"penstock/segment"
	"penstock/torch"
)

// forward performs the operations of a micro-batch's plan before the loss, and keeps what has to be
// sent to other stages.
func (r *minibatch) forward(c *torch.Ctx, a schedule.Action) {
	stage, state := r.p.stages[a.Stage], &r.states[a.Stage][a.MicroBatch]
	state.execution.Final = !r.graph
	if a.Stage == 0 {
		r.viewBatch(c, a.MicroBatch)
	}
	state.enter(stage)
	r.perform(c, a, r.operations(a.Stage, a.MicroBatch).forward)
	var skips []*torch.Tensor
	var saved bool
	if state.out, skips, saved = state.execution.Output(); !saved {
		state.out = nil
	}
	xs, sent := state.execution.Take(state.execution.Units())
	if r.loss == nil || !r.last(a.Stage) {
		state.sent = xs
	} else {
		r.readLoss(c, state, xs)
		torch.FreeAll(xs)
	}
	for i, p := range stage.skips {
		state.skips[i].leave(p, skips, sent)
	}
	if d := r.deferred; d != nil && a.MicroBatch == len(r.parts)-1 {
		d[a.Stage].Commit(r.context(c, a.Stage, a.MicroBatch, segment.Run{}))
	}
}

// recompute performs the operations of a plan between the loss and the arrival of the gradient.
func (r *minibatch) recompute(c *torch.Ctx, a schedule.Action) {
	if r.p.optimal() && r.loss != nil && r.last(a.Stage) { // the gradient of the loss is where the plan has it
		r.start(c, a, &r.states[a.Stage][a.MicroBatch])
	}
	r.perform(c, a, r.operations(a.Stage, a.MicroBatch).recompute)
}

// perform performs operations of a plan.
func (r *minibatch) perform(c *torch.Ctx, a schedule.Action, ops []remat.Op) {
	defer c.SetAutocast(c.SetAutocast(r.p.cfg.Autocast))
	execution := &r.states[a.Stage][a.MicroBatch].execution
	execution.Retain = r.retain
	for _, op := range ops {
		execution.Do(c, op)
	}
}

// enter gives the execution what the stage has received.
func (c *microBatchState) enter(stage *Stage) {
	arrival := c.in
	c.in = segment.Arrival{}
	for i, p := range stage.skips {
		if p.pops == 0 {
			continue
		}
		s := &c.skips[i]
		arrival.Skips, arrival.WantsSkips = append(arrival.Skips, s.in), append(arrival.WantsSkips, s.wants)
		s.in = nil
	}
	c.execution.Send(0, arrival)
}

// leave keeps a skip that goes to other stages. It has its graph if the last unit of the execution
// stashed it.
func (s *skipState) leave(p stageSkip, skips, sent []*torch.Tensor) {
	if len(p.to) == 0 {
		return
	}
	if s.sent = sent[p.place]; s.sent == nil {
		s.out = skips[p.place]
	}
	s.left = len(p.to)
}

// context makes the context in which a unit runs its layers on a micro-batch.
func (r *minibatch) context(c *torch.Ctx, stage, microBatch int, run segment.Run) *nn.Ctx {
	cfg := nn.Config{
		Training: r.training, MicroBatch: microBatch, MicroBatches: len(r.parts),
		Checkpointing: run.More, Recomputing: run.Again,
		Seed: torch.Mix(r.p.cfg.Seed, uint64(r.batch.Step)), Spans: run.Graph, Skips: run.Skips, Extras: r.batch.Extras,
	}
	if r.deferred != nil {
		cfg.Deferred = r.deferred[stage]
	}
	if r.loss != nil && r.last(stage) {
		cfg.Loss, cfg.Target = r.loss, r.want(c, microBatch)
	}
	return nn.NewCtx(c, cfg)
}

// viewBatch gives the first stage its part of the inputs: views of the micro-batch's rows.
func (r *minibatch) viewBatch(c *torch.Ctx, microBatch int) {
	c.SetGrad(false)
	in := segment.Arrival{Tensors: make([]*torch.Tensor, len(r.inputs)), Wants: make([]bool, len(r.inputs)), Lent: true}
	for i, v := range r.inputs {
		in.Tensors[i] = c.Keep(r.parts[microBatch].part(c, v))
		in.Wants[i] = r.inputGrad && v.Tensor.RequiresGrad()
	}
	r.states[0][microBatch].in = in
}

// want is a micro-batch's part of the targets: views of its rows.
func (r *minibatch) want(c *torch.Ctx, microBatch int) []*torch.Tensor {
	if r.wanted[microBatch] == nil {
		list := make([]*torch.Tensor, len(r.targets))
		for i, v := range r.targets {
			list[i] = c.Keep(r.parts[microBatch].part(c, v))
		}
		r.wanted[microBatch] = list
	}
	return r.wanted[microBatch]
}
