package pipe

import (
	"errors"
	"fmt"

	"penstock/nn"
	"penstock/schedule"
	"penstock/torch"
)

// Batch is a mini-batch. Its tensors belong to the caller, who keeps them until the call returns; they are best made on the first and the last device.
type Batch struct {
	Input  *torch.Tensor // [rows, ...]; if it requires a gradient, a leaf, which gets it
	Target *torch.Tensor // [rows, ...]; Step only
	Step   int64         // seeds the step's randomness together with Config.Seed
}

// minibatch is the state of a mini-batch on its way through the stages. Each cell is touched by its stage's worker, and by the worker of a neighbour while that
// takes over an activation or a gradient; the program's dependencies keep the two apart.
type minibatch struct {
	p        *Pipe
	training bool
	policy   Checkpoint
	batch    Batch
	loss     nn.Loss
	grad     *torch.Tensor // of the whole output; for a backward without a loss
	parts    []rows
	total    int64
	cells    [][]cell  // [stage][micro-batch]
	running  []*nn.Ctx // by worker: the forward that runs, for errors

	// Views of the batch, by micro-batch, made by the first forward that needs them; the last stage's worker owns the rest.
	inputs, targets []*torch.Tensor
	lossGrad        *torch.Tensor // the gradient of a micro-batch's loss: lossWeight
	lossWeight      float64
}

// cell is what a stage holds of a micro-batch between actions. All tensors are kept (torch.Ctx.Keep).
type cell struct {
	in      *torch.Tensor // the stage's input, a leaf; nil on the first stage, which cuts it from the batch
	sent    *torch.Tensor // the stage's output where forward kept no graph: it waits for the next stage, or to be gathered
	out     *torch.Tensor // the stage's output, or the loss, with the graph that backward needs
	outGrad *torch.Tensor
	inGrad  *torch.Tensor
	loss    float64
	spans   []nn.Span // which layer recorded which part of out's graph
}

func (p *Pipe) minibatch(b Batch, training bool) (*minibatch, error) {
	switch {
	case b.Input == nil:
		return nil, errors.New("pipe: the batch has no input")
	case b.Input.Freed() || b.Target != nil && b.Target.Freed():
		return nil, errors.New("pipe: the batch's tensors were freed; keep them until the call returns")
	}
	if !b.Input.IsLeaf() {
		return nil, errors.New("pipe: the input hangs on a graph, which one backward for each micro-batch cannot go through; detach it, and go on from its gradient")
	}
	shape := b.Input.Shape()
	if len(shape) == 0 {
		return nil, fmt.Errorf("pipe: input %v has no rows to split into micro-batches", b.Input)
	}
	r := &minibatch{p: p, training: training, policy: Never, batch: b, total: shape[0], parts: split(shape[0], p.cfg.Chunks)}
	if training {
		r.policy = p.cfg.Checkpoint
	}
	r.cells = make([][]cell, len(p.stages))
	for s := range r.cells {
		r.cells[s] = make([]cell, len(r.parts))
	}
	r.running = make([]*nn.Ctx, len(p.workers))
	r.inputs, r.targets = make([]*torch.Tensor, len(r.parts)), make([]*torch.Tensor, len(r.parts))
	return r, nil
}

// free lets go of everything the cells still hold, and of the views.
func (r *minibatch) free() {
	for i := range r.parts {
		r.inputs[i].Free()
		r.targets[i].Free()
	}
	r.lossGrad.Free()
	r.lossGrad = nil
	for s := range r.cells {
		for i := range r.cells[s] {
			c := &r.cells[s][i]
			c.in.Free()
			c.sent.Free()
			c.out.Free()
			c.outGrad.Free()
			c.inGrad.Free()
			*c = cell{loss: c.loss}
		}
	}
}

func (r *minibatch) do(worker int, c *torch.Ctx, a schedule.Action) {
	switch a.Kind {
	case schedule.Forward:
		r.forward(worker, c, a, r.training && !r.policy.recompute(a.MicroBatch))
	case schedule.Recompute:
		r.forward(worker, c, a, true)
	case schedule.Backward:
		r.backward(c, a)
	case schedule.Activation:
		r.receive(c, a)
	case schedule.Gradient:
		r.receiveGradient(c, a)
	}
}

func (r *minibatch) layer(worker int, a schedule.Action, err error) string {
	switch a.Kind {
	case schedule.Forward, schedule.Recompute:
		if r.running[worker] != nil {
			return r.running[worker].Path()
		}
	case schedule.Backward:
		var e *torch.Error
		if errors.As(err, &e) {
			return nn.LayerOf(r.cells[a.Stage][a.MicroBatch].spans, e.Sequence)
		}
	}
	return ""
}

// forward runs a stage's layers on a micro-batch. With graph set it records; the first forward of a cell that is recomputed later does not.
func (r *minibatch) forward(worker int, c *torch.Ctx, a schedule.Action, graph bool) {
	stage, cell := r.p.stages[a.Stage], &r.cells[a.Stage][a.MicroBatch]
	n := nn.NewCtx(c, nn.Config{
		Training: r.training, MicroBatch: a.MicroBatch, MicroBatches: len(r.parts),
		Checkpointing: r.training && !graph, Recomputing: a.Kind == schedule.Recompute,
		Seed: torch.Mix(r.p.cfg.Seed, uint64(r.batch.Step)), Spans: graph,
	})
	r.running[worker] = n
	c.SetGrad(graph)
	in := cell.in
	if in == nil {
		if in = r.inputs[a.MicroBatch]; in == nil {
			in = r.rowsOf(c, r.batch.Input, a.MicroBatch)
			if !r.batch.Input.RequiresGrad() { // else it belongs to the graph of this forward alone
				r.inputs[a.MicroBatch] = c.Keep(in)
			}
		}
	}
	x := in
	if graph && cell.in != nil && in.RequiresGrad() {
		x = c.Gate(in, in)
	}
	changes := in.Changes()
	mark := c.Mark()
	for _, l := range stage.Layers {
		if f, ok := l.Layer.(nn.InPlace); ok && f.OverwritesInput() && sameMemory(x, in) {
			x = c.Clone(x)
			c.Release(mark, x)
		}
		x = n.RunNamed(l, x)
		c.Release(mark, x)
	}
	if in.Changes() != changes {
		panic(errors.New("a layer overwrote the stage's input; let it declare nn.InPlace, or begin the stage with another layer"))
	}
	if r.loss != nil && a.Stage == len(r.p.stages)-1 {
		if r.targets[a.MicroBatch] == nil {
			r.targets[a.MicroBatch] = c.Keep(r.rowsOf(c, r.batch.Target, a.MicroBatch))
		}
		x = n.RunNamed(nn.NamedLayer{Name: "loss", Layer: &lossLayer{loss: r.loss, target: r.targets[a.MicroBatch]}}, x)
		if a.Kind == schedule.Forward {
			cell.loss = number(x)
		}
	}
	r.running[worker] = nil
	cell.spans = n.Spans()
	if x == cell.in || !c.Owns(x) {
		x = c.Share(x) // layers that do nothing, or give a parameter: the cell frees input and output one by one
	}
	// A recomputed cell has both: the next stage may take over what was sent after the recomputation has begun.
	switch {
	case graph:
		cell.out = c.Keep(x)
	case r.loss == nil || a.Stage < len(r.p.stages)-1:
		cell.sent = c.Keep(x)
	}
}

func sameMemory(a, b *torch.Tensor) bool {
	if a == nil {
		return false
	}
	x, _ := a.Storage()
	y, _ := b.Storage()
	return x == y
}

// rowsOf is a micro-batch's part of a tensor of the whole batch, a view.
func (r *minibatch) rowsOf(c *torch.Ctx, t *torch.Tensor, microBatch int) *torch.Tensor {
	return c.Narrow(t, 0, r.parts[microBatch].start, r.parts[microBatch].length)
}

// receive takes over the activation of the stage before.
func (r *minibatch) receive(c *torch.Ctx, a schedule.Action) {
	from, to := &r.cells[a.Source][a.MicroBatch], &r.cells[a.Stage][a.MicroBatch]
	if from.sent != nil {
		to.in = c.Keep(r.moved(c, from.sent, a))
		from.sent.Free()
		from.sent = nil
	} else {
		to.in = c.Keep(r.moved(c, from.out, a))
	}
	if r.training && to.in.DType().IsFloat() && (r.p.stages[a.Stage].inputGrad || r.batch.Input.RequiresGrad()) {
		to.in.SetRequiresGrad(true)
	}
}

// moved is an activation on the receiving stage's device: a copy, unless the sender is on the same device.
func (r *minibatch) moved(c *torch.Ctx, t *torch.Tensor, a schedule.Action) *torch.Tensor {
	if r.sameDevice(a) {
		return c.Detach(t)
	}
	return c.CopyHere(t)
}

func (r *minibatch) sameDevice(a schedule.Action) bool {
	return r.p.stages[a.Source].Device == r.p.stages[a.Stage].Device
}

func (r *minibatch) receiveGradient(c *torch.Ctx, a schedule.Action) {
	from, to := &r.cells[a.Source][a.MicroBatch], &r.cells[a.Stage][a.MicroBatch]
	if from.inGrad != nil { // nil: the loss does not depend on this activation
		if r.sameDevice(a) {
			to.outGrad = from.inGrad
		} else {
			to.outGrad = c.Keep(c.CopyHere(from.inGrad))
			from.inGrad.Free()
		}
		from.inGrad = nil
	}
}

// backward adds the micro-batch's share to the gradients of the stage's parameters and leaves the gradient of the stage's input for the stage before.
func (r *minibatch) backward(c *torch.Ctx, a schedule.Action) {
	cell := &r.cells[a.Stage][a.MicroBatch]
	grad := cell.outGrad
	switch {
	case a.Stage < len(r.p.stages)-1:
	case r.loss != nil:
		grad = r.gradOfLoss(c, cell.out, r.weight(a.MicroBatch))
	default:
		grad = r.rowsOf(c, r.grad, a.MicroBatch)
	}
	c.SetGrad(false)
	if grad != nil && cell.out.RequiresGrad() {
		c.Backward([]*torch.Tensor{cell.out}, []*torch.Tensor{grad}, false)
	}
	cell.out.Free()
	cell.outGrad.Free()
	cell.out, cell.outGrad, cell.spans = nil, nil, nil
	if cell.in != nil {
		cell.inGrad = c.Keep(c.GradOf(cell.in))
		cell.in.SetGradOf(nil)
		cell.in.Free()
		cell.in = nil
	}
}

// weight makes micro-batch losses add up to the loss of the whole batch: a mean counts by its rows, a sum fully.
func (r *minibatch) weight(microBatch int) float64 {
	if r.loss.Reduction() == torch.ReduceSum || r.total == 0 {
		return 1
	}
	return float64(r.parts[microBatch].length) / float64(r.total)
}

// lossLayer lets the loss run under a name of its own, as the last layer of the last stage.
type lossLayer struct {
	nn.Base
	loss   nn.Loss
	target *torch.Tensor
}

func (l *lossLayer) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	return l.loss.Forward(c, x, l.target)
}

// gradOfLoss is a micro-batch's weight as the gradient of its loss. Micro-batches of a mini-batch have at most two weights, one after the other.
func (r *minibatch) gradOfLoss(c *torch.Ctx, loss *torch.Tensor, weight float64) *torch.Tensor {
	if r.lossGrad == nil || r.lossWeight != weight {
		r.lossGrad.Free()
		r.lossGrad, r.lossWeight = c.Keep(c.Fill_(c.EmptyLike(loss), weight)), weight
	}
	return r.lossGrad
}

// number reads a loss.
func number(t *torch.Tensor) float64 {
	switch t.DType() {
	case torch.Float64:
		return torch.Item[float64](t)
	case torch.BFloat16:
		return float64(torch.Item[torch.BF16](t).Float32())
	}
	return float64(torch.Item[float32](t))
}
