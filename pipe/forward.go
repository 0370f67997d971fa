package pipe

import (
	"fmt"
	"slices"

	"penstock/nn"
	"penstock/schedule"
	"penstock/torch"
)

// forward runs a stage's layers on a micro-batch. With graph set it records; the first forward of a cell that is recomputed later does not.
func (r *minibatch) forward(worker int, c *torch.Ctx, a schedule.Action, graph bool) {
	stage, cell := r.p.stages[a.Stage], &r.cells[a.Stage][a.MicroBatch]
	skips := nn.NewSkipStore(r.p.routes, stage.first, stage.first+len(stage.Layers))
	defer skips.Free()
	cfg := nn.Config{
		Training: r.training, MicroBatch: a.MicroBatch, MicroBatches: len(r.parts),
		Checkpointing: r.graph && !graph, Recomputing: a.Kind == schedule.Recompute,
		Seed: torch.Mix(r.p.cfg.Seed, uint64(r.batch.Step)), Spans: graph, Skips: skips, Extras: r.batch.Extras,
	}
	if r.deferred != nil {
		cfg.Deferred = r.deferred[a.Stage]
	}
	n := nn.NewCtx(c, cfg)
	r.running[worker] = n
	c.SetGrad(graph)
	defer c.SetAutocast(c.SetAutocast(r.p.cfg.Autocast))

	in := cell.in
	if a.Stage == 0 {
		in = r.view(c, a.MicroBatch)
	}
	for i, p := range stage.ports {
		r.give(c, skips, p, &cell.ports[i], graph)
	}
	mark := c.Mark()
	xs := gated(c, in, cell.mail, graph)
	if !r.graph && a.Stage > 0 { // nobody will need it again: it goes when the first layer has used it
		for _, x := range in {
			c.Adopt(x)
		}
		in, cell.in = nil, nil
	}
	skips.Guard(in)
	unchanged := r.watch(c, in, stage, cell)
	for _, l := range stage.Layers {
		xs = n.RunNamed(l, xs)
		c.Release(mark, xs...)
		unchanged(l.Name)
	}
	if r.loss != nil && r.last(a.Stage) {
		xs = n.RunNamed(nn.NamedLayer{Name: "loss", Layer: nn.Tuple(&lossLayer{loss: r.loss, targets: r.want(c, a.MicroBatch)})}, xs)
		if a.Kind == schedule.Forward {
			cell.loss = number(c, xs[0])
		}
	}
	r.running[worker] = nil
	cell.ran = n
	// A recomputed cell has both: the next stage may take over what was sent after the recomputation has begun.
	switch {
	case graph:
		cell.out = keep(c, xs)
	case r.loss == nil || !r.last(a.Stage):
		cell.sent = keep(c, xs)
	}
	for i, p := range stage.ports {
		r.leave(n, skips, p, &cell.ports[i], graph, a.Kind == schedule.Recompute)
	}
	if !r.graph || graph && !r.retained(a) {
		cell.drop() // the graph, if there is one, keeps what it needs
	}
	if cfg.Deferred != nil && a.Kind == schedule.Forward && a.MicroBatch == len(r.parts)-1 {
		cfg.Deferred.Commit(n)
	}
}

// retained says whether a recomputation will be repeated for a second backward.
func (r *minibatch) retained(a schedule.Action) bool {
	return r.retain && r.recomputes(a.Stage, a.MicroBatch)
}

// view is a micro-batch's part of the inputs.
func (r *minibatch) view(c *torch.Ctx, microBatch int) []*torch.Tensor {
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

// gated lets gradients of the inputs arrive in their mailboxes.
func gated(c *torch.Ctx, in, mail []*torch.Tensor, graph bool) []*torch.Tensor {
	xs := slices.Clone(in)
	if !graph {
		return xs
	}
	for i, box := range mail {
		if k := slices.Index(in[:i], in[i]); k >= 0 {
			xs[i] = xs[k]
		} else if box != nil {
			xs[i] = c.Gate(box, in[i])
		}
	}
	return xs
}

// give hands a skip to the layers that pop it, each its own handle.
func (r *minibatch) give(c *torch.Ctx, skips *nn.SkipStore, p port, s *passage, graph bool) {
	if p.pops == 0 {
		return
	}
	list := make([]*torch.Tensor, p.pops)
	for k := range list {
		switch {
		case s.in == nil:
		case graph && s.mail != nil:
			list[k] = c.Keep(c.Gate(s.mail[k], s.in))
		default:
			list[k] = c.Keep(c.Share(s.in))
		}
	}
	skips.Give(p.key, list...)
	if !r.graph && len(p.to) == 0 { // it goes with its last pop
		s.in.Free()
		s.in = nil
	}
}

// watch returns a function, to be called after each layer with its name, that panics if the layer has overwritten what the stage was sent and is still to be used.
func (r *minibatch) watch(c *torch.Ctx, in []*torch.Tensor, stage *Stage, cell *cell) func(layer string) {
	before := make([]int64, len(in)+len(stage.ports))
	for i, x := range in {
		before[i] = x.Changes()
	}
	for i := range stage.ports {
		if x := cell.ports[i].in; x != nil {
			before[len(in)+i] = x.Changes()
		}
	}
	refuse := func(x *torch.Tensor, format string, args ...any) {
		panic(&torch.Error{Op: "Forward", Args: []string{x.String()}, Device: c.Device(), Message: fmt.Sprintf(format, args...)})
	}
	return func(layer string) {
		for i, x := range in {
			if x.Changes() != before[i] {
				refuse(x, "the layer %q overwrote the stage's input, which is still to be used; let it declare nn.InPlace, or work on a Clone", layer)
			}
		}
		for i := range stage.ports {
			if x := cell.ports[i].in; x != nil && x.Changes() != before[len(in)+i] {
				refuse(x, "the layer %q overwrote the skip %v, which is still to be used; let it work on a Clone", layer, stage.ports[i].key)
			}
		}
	}
}

// leave takes a skip that goes to other stages.
func (r *minibatch) leave(n *nn.Ctx, skips *nn.SkipStore, p port, s *passage, graph, recomputing bool) {
	if len(p.to) == 0 || recomputing && p.from.stage >= 0 {
		return
	}
	t := s.in
	if p.from.stage < 0 {
		t = skips.Take(n, p.key)
	}
	switch {
	case t == nil: // absent, and the cell is left alone: a stage that has still to learn so may be reading it
	case p.from.stage < 0 && graph:
		s.out = t
	case p.from.stage < 0:
		s.sent = t
	default:
		s.sent = n.Keep(n.Share(t)) // relayed
	}
	if !recomputing {
		s.pending.Store(int32(len(p.to)))
	}
}
