package pipe

import (
	"penstock/nn"
	"penstock/remat/plan"
	"penstock/schedule"
	"penstock/segment"
	"penstock/torch"
)

// forward does what a micro-batch's script has for a stage before the loss, and leaves what goes to other stages.
func (r *minibatch) forward(c *torch.Ctx, a schedule.Action) {
	stage, cell := r.p.stages[a.Stage], &r.cells[a.Stage][a.MicroBatch]
	cell.walk.Final = !r.graph
	if a.Stage > 0 {
		cell.enter(stage)
	}
	r.perform(c, a, r.script(a.Stage, a.MicroBatch).forward)
	cell.walk.Do(c, nil, plan.Op{Kind: plan.LossStep})
	var skips []*torch.Tensor
	var saved bool
	if cell.out, skips, saved = cell.walk.Output(); !saved {
		cell.out = nil
	}
	xs, sent := cell.walk.Take(cell.walk.Units())
	switch {
	case r.loss == nil || !r.last(a.Stage):
		cell.sent = xs
	default:
		torch.FreeAll(xs)
	}
	for i, p := range stage.ports {
		cell.ports[i].leave(p, skips, sent)
	}
	if d := r.deferred; d != nil && a.MicroBatch == len(r.parts)-1 {
		d[a.Stage].Commit(walker{r, a}.Context(c, segment.Run{}))
	}
}

// recompute does what a script has between the loss and the gradient's arrival.
func (r *minibatch) recompute(c *torch.Ctx, a schedule.Action) {
	if r.planned != nil && r.loss != nil && r.last(a.Stage) { // the gradient of the loss is where the plan has it
		r.start(c, a, &r.cells[a.Stage][a.MicroBatch])
	}
	r.perform(c, a, r.script(a.Stage, a.MicroBatch).recompute)
}

// perform does operations of a script.
func (r *minibatch) perform(c *torch.Ctx, a schedule.Action, ops []plan.Op) {
	defer c.SetAutocast(c.SetAutocast(r.p.cfg.Autocast))
	walk := &r.cells[a.Stage][a.MicroBatch].walk
	walk.Retain = r.retain
	for _, op := range ops {
		walk.Do(c, walker{r, a}, op)
	}
}

// enter gives the walk what other stages have sent.
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
	c.walk.Send(0, arrival)
}

// leave takes a skip that goes to other stages: with its graph, where the last unit of the walk has stashed it, or without.
func (s *passage) leave(p port, skips, sent []*torch.Tensor) {
	if len(p.to) == 0 {
		return
	}
	if s.sent = sent[p.place]; s.sent == nil {
		s.out = skips[p.place]
	}
	s.left = len(p.to)
}

// walker drives the walk of a cell.
type walker struct {
	r *minibatch
	a schedule.Action
}

// Context makes that of a forward.
func (w walker) Context(c *torch.Ctx, run segment.Run) *nn.Ctx {
	r := w.r
	cfg := nn.Config{
		Training: r.training, MicroBatch: w.a.MicroBatch, MicroBatches: len(r.parts),
		Checkpointing: run.More, Recomputing: run.Again,
		Seed: torch.Mix(r.p.cfg.Seed, uint64(r.batch.Step)), Spans: run.Graph, Skips: run.Skips, Extras: r.batch.Extras,
	}
	if r.deferred != nil {
		cfg.Deferred = r.deferred[w.a.Stage]
	}
	return nn.NewCtx(c, cfg)
}

// Input is the micro-batch's part of the inputs.
func (w walker) Input(c *torch.Ctx) []*torch.Tensor {
	r, microBatch := w.r, w.a.MicroBatch
	if list := r.views[microBatch]; list != nil {
		return list
	}
	list := make([]*torch.Tensor, len(r.inputs))
	for i, v := range r.inputs {
		list[i] = r.parts[microBatch].part(c, v)
	}
	if !r.inputGrad { // else they belong to the graph of this forward alone
		for _, t := range list {
			c.Keep(t)
		}
		r.views[microBatch] = list
	}
	return list
}

// Tail is the loss, behind the last stage.
func (w walker) Tail(c *torch.Ctx) nn.NamedLayer {
	r := w.r
	if r.loss == nil || !r.last(w.a.Stage) {
		return nn.NamedLayer{}
	}
	return nn.LossLayer(r.loss, r.want(c, w.a.MicroBatch))
}

// Result reads the loss.
func (w walker) Result(c *torch.Ctx, ys []*torch.Tensor) {
	if w.r.loss != nil && w.r.last(w.a.Stage) {
		w.r.lossType = ys[0].DType()
		w.r.cells[w.a.Stage][w.a.MicroBatch].loss = number(c, ys[0])
	}
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
