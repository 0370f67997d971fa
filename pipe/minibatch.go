package pipe

import (
	"context"
	"errors"
	"fmt"

	"penstock/internal/arg"
	"penstock/nn"
	"penstock/schedule"
	"penstock/segment"
	"penstock/torch"
)

// minibatch is the state of a mini-batch in one run. The state of a micro-batch on a stage is used
// by the worker of the stage alone. All that moves between stages goes over the link.
type minibatch struct {
	p         *Pipe
	training  bool
	graph     bool // backward will follow
	retain    bool // the backward that runs is not the last
	batch     Batch
	inputs    []Value
	targets   []Value
	inputGrad bool // an input wants its gradient
	loss      nn.Loss
	// grads are the gradients of the whole outputs, for a backward without a loss; nil where an
	// output has none.
	grads []*torch.Tensor
	// joined has the rows of each output, by micro-batch, in the whole output. They may be other
	// rows than those of the input.
	joined   [][]rows
	parts    []rows
	total    int64
	states   [][]microBatchState // [stage][micro-batch]
	link     memoryLink
	deferred []*nn.Deferred // by stage, or nil

	// The last stage's worker owns these.
	wanted     [][]*torch.Tensor // targets by micro-batch, views that the first forward makes
	lossGrad   *torch.Tensor     // the gradient of a micro-batch's loss: lossWeight
	lossWeight float64
	lossType   torch.DType

	prepared *prepared // the plan; nil without a backward

	gathers    bool            // the run ends with gathering the outputs
	outputs    []*torch.Tensor // gathered, kept
	ungradient []Value         // inputs that want a gradient and had none when the run began
}

// minibatch checks a batch and splits it.
func (p *Pipe) minibatch(ctx context.Context, b Batch, training, graph bool) (*minibatch, error) {
	if err := arg.Context(ctx, "pipe"); err != nil {
		return nil, err
	}
	if err := p.undivided(); err != nil {
		return nil, err
	}
	inputs := b.Input
	if len(inputs) == 0 {
		return nil, errNoInput
	}
	total, err := countRows("input", inputs)
	if err != nil {
		return nil, err
	}
	if total == 0 && training {
		return nil, fmt.Errorf("pipe: the batch has no rows (input 0 is %v); a training step needs at least one", inputs[0].Tensor)
	}
	if err := checkKind("input", inputs, "first", p.stages[0]); err != nil {
		return nil, err
	}
	r := &minibatch{p: p, training: training, graph: graph, batch: b, inputs: inputs,
		inputGrad: graph && requiresGrad(inputs), total: total, parts: split(total, p.cfg.Chunks)}
	r.states = make([][]microBatchState, len(p.stages))
	for s := range r.states {
		r.states[s] = make([]microBatchState, len(r.parts))
		for i := range r.states[s] {
			r.states[s][i].init(p.stages[s])
		}
		r.begins(s, p.stages[s].whole)
	}
	r.wanted = make([][]*torch.Tensor, len(r.parts))
	if p.cfg.DeferredBatchNorm && training {
		for range p.stages {
			r.deferred = append(r.deferred, nn.NewDeferred())
		}
	}
	return r, nil
}

// begins prepares the executions of a stage's micro-batches for a segment.
func (r *minibatch) begins(stage int, s *segment.Segment) {
	for i := range r.states[stage] {
		r.states[stage][i].execution.Begin(s, func(c *torch.Ctx, run segment.Run) *nn.Ctx { return r.context(c, stage, i, run) })
	}
}

// setLoss makes a loss the last layer of the last stage. The batch must have targets for it.
func (r *minibatch) setLoss(loss nn.Loss) error {
	if err := r.setTargets(); err != nil {
		return err
	}
	last := len(r.p.stages) - 1
	r.loss = loss
	r.begins(last, r.p.stages[last].scored)
	return nil
}

// setTargets takes the targets of the batch and checks them.
func (r *minibatch) setTargets() error {
	if r.targets = r.batch.Target; len(r.targets) == 0 {
		return errors.New("pipe: the batch has no target; set Target to pipe.Rows(y)")
	}
	total, err := countRows("target", r.targets)
	if err == nil && total != r.total {
		err = fmt.Errorf("pipe: the input has %d rows, the target %d; both must have the same", r.total, total)
	}
	if err != nil {
		return err
	}
	return checkKind("target", r.targets, "last", r.p.stages[len(r.p.stages)-1])
}

// operations is what a stage does with a micro-batch.
func (r *minibatch) operations(stage, microBatch int) operations {
	if !r.graph {
		return forwardOnly
	}
	return r.prepared.operations[stage][microBatch]
}

// free frees the states, the link and the views of targets.
func (r *minibatch) free() {
	for i := range r.parts {
		torch.FreeAll(r.wanted[i])
		r.wanted[i] = nil
	}
	r.lossGrad.Free()
	r.lossGrad = nil
	for s := range r.states {
		for i := range r.states[s] {
			r.states[s][i].free()
		}
	}
	r.link.free()
	for _, d := range r.deferred {
		d.Free()
	}
}

func (r *minibatch) do(c *torch.Ctx, a schedule.Action) {
	switch a.Kind {
	case schedule.Forward:
		r.forward(c, a)
	case schedule.Recompute:
		r.recompute(c, a)
	case schedule.Backward:
		r.backward(c, a)
	case schedule.SendActivation:
		r.sendActivation(c, a)
	case schedule.ReceiveActivation:
		r.receiveActivation(c, a)
	case schedule.SendGradient:
		r.sendGradient(c, a)
	case schedule.ReceiveGradient:
		r.receiveGradient(c, a)
	}
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
	running := r.states[a.Stage][a.MicroBatch].execution.Running()
	var e *torch.Error
	switch {
	case running == nil || a.Kind.Transfer():
		return ""
	case running.Path() != "": // in a forward, or nn.Checkpointed ran it again
		return running.Path()
	case errors.As(err, &e):
		return nn.LayerOf(running.Spans(), e.Sequence)
	}
	return ""
}

// last says whether a stage is the last one.
func (r *minibatch) last(stage int) bool { return stage == len(r.p.stages)-1 }
