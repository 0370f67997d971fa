package pipe

import (
	"penstock/nn"
	"penstock/remat"
	"penstock/schedule"
	"penstock/segment"
	"penstock/torch"
)

// forward does what a micro-batch's plan has for a stage before the loss, and leaves what goes to
// other stages.
func (r *minibatch) forward(c *torch.Ctx, a schedule.Action) {
	stage, cell := r.p.stages[a.Stage], &r.cells[a.Stage][a.MicroBatch]
	cell.execution.Final = !r.graph
	if a.Stage == 0 {
		r.viewBatch(c, a.MicroBatch)
	}
	cell.enter(stage)
	r.perform(c, a, r.work(a.Stage, a.MicroBatch).forward)
	var skips []*torch.Tensor
	var saved bool
	if cell.out, skips, saved = cell.execution.Output(); !saved {
		cell.out = nil
	}
	xs, sent := cell.execution.Take(cell.execution.Units())
	if r.loss == nil || !r.last(a.Stage) {
		cell.sent = xs
	} else {
		r.readLoss(c, cell, xs)
		torch.FreeAll(xs)
	}
	for i, p := range stage.ports {
		cell.ports[i].leave(p, skips, sent)
	}
	if d := r.deferred; d != nil && a.MicroBatch == len(r.parts)-1 {
		d[a.Stage].Commit(r.context(c, a.Stage, a.MicroBatch, segment.Run{}))
	}
}

// recompute does what a plan has between the loss and the gradient's arrival.
func (r *minibatch) recompute(c *torch.Ctx, a schedule.Action) {
	if r.p.optimal() && r.loss != nil && r.last(a.Stage) { // the gradient of the loss is where the plan has it
		r.start(c, a, &r.cells[a.Stage][a.MicroBatch])
	}
	r.perform(c, a, r.work(a.Stage, a.MicroBatch).recompute)
}

// perform does operations of a plan.
func (r *minibatch) perform(c *torch.Ctx, a schedule.Action, ops []remat.Op) {
	defer c.SetAutocast(c.SetAutocast(r.p.cfg.Autocast))
	execution := &r.cells[a.Stage][a.MicroBatch].execution
	execution.Retain = r.retain
	for _, op := range ops {
		execution.Do(c, op)
	}
}

// enter gives the execution what other stages have sent.
func (c *cell) enter(stage *Stage) {
	arrival := c.in
	c.in = segment.Arrival{}
	for i, p := range stage.ports {
		if p.pops == 0 {
			continue
		}
		s := &c.ports[i]
		arrival.Skips, arrival.WantsSkips = append(arrival.Skips, s.in), append(arrival.WantsSkips, s.wants)
		s.in = nil
	}
	c.execution.Send(0, arrival)
}

// leave takes a skip that goes to other stages: with its graph, where the last unit of the
// execution has stashed it, or without.
func (s *passage) leave(p port, skips, sent []*torch.Tensor) {
	if len(p.to) == 0 {
		return
	}
	if s.sent = sent[p.place]; s.sent == nil {
		s.out = skips[p.place]
	}
	s.left = len(p.to)
}

// context makes the context of a forward of a micro-batch on a stage.
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

// viewBatch gives the first stage a micro-batch's part of the inputs.
func (r *minibatch) viewBatch(c *torch.Ctx, microBatch int) {
	c.SetGrad(false)
	in := segment.Arrival{Tensors: make([]*torch.Tensor, len(r.inputs)), Wants: make([]bool, len(r.inputs)), Lent: true}
	for i, v := range r.inputs {
		in.Tensors[i] = c.Keep(r.parts[microBatch].part(c, v))
		in.Wants[i] = r.inputGrad && v.Tensor.RequiresGrad()
	}
	r.cells[0][microBatch].in = in
}

// want is a micro-batch's part of the targets.
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
