package pipe

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"penstock.example/internal/link"
	"penstock.example/internal/segment"
	"penstock.example/nn"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// run is a mini-batch on its way through the stages, in one or several passes. The state of a
// micro-batch on a stage belongs to the stage's worker.
type run struct {
	p            *Pipe
	training     bool
	withBackward bool // backward will follow
	retain       bool // another backward will follow this one
	stepKnown    bool
	step         int64
	gathers      bool // at its end the pass gathers the outputs
	batch        Batch
	inputGrad    bool            // an input wants its gradient
	inputGrads   []*torch.Tensor // of a batch within a layer, after its backward
	loss         nn.Loss
	targets      [][]*torch.Tensor // by micro-batch
	weights      []float64         // by micro-batch: nn.LossWeight
	weight       float64           // of all micro-batches, replicas and batches of the update
	grads        []*torch.Tensor   // by output, or nil: the gradients for a backward without a loss
	outputs      []*torch.Tensor   // gathered, kept
	joined       [][]rows          // by output, by micro-batch: rows of the whole output
	parts        []rows            // by micro-batch of this replica
	firstIndex   int               // number of micro-batches of the update in earlier batches and replicas
	total        int64             // rows of the whole batch
	plan         *prepared         // nil without a backward
	available    []available       // by stage, for the policy Optimal
	states       [][]microBatch    // [stage][micro-batch]
	localLink    link.Link         // between stages of this process
	remoteLink   link.Link         // to and from stages of other processes; nil without a group
	deferred     []*nn.Deferred    // by stage, or nil
	lossType     torch.DType       // after a forward; the last stage's worker owns it

	*pass // the current one
}

// newRun checks a batch and splits it.
func (p *Pipe) newRun(b Batch, training, withBackward bool) (*run, error) {
	if b.Within == nil { // otherwise a layer uses the replicas of the pipe around it
		if err := p.checkOwner(); err != nil {
			return nil, err
		}
	}
	p.updateModes()
	total, err := countRows("input", b.Input, b.Within != nil && len(b.Input) > 0, p.stages[0])
	switch {
	case err != nil:
		return nil, err
	case total == 0 && training:
		return nil, errors.New("pipe: the batch has no rows; a training step needs at least one")
	}
	if b.Within != nil {
		b.Extras = b.Within.Extras
	}
	r := &run{p: p, training: training, withBackward: withBackward, batch: b, total: total}
	r.inputGrad = withBackward && slices.ContainsFunc(b.Input, func(v Value) bool { return v.Tensor.RequiresGrad() })
	if count, index := p.cfg.replicas(); !withBackward || count == 1 {
		r.parts = split(total, p.cfg.Chunks)
	} else if parts := p.replicaParts(total); parts == nil {
		return nil, fmt.Errorf("pipe: %d rows for %d replicas; want at least one for each", total, count)
	} else {
		r.parts, r.firstIndex = parts[index], len(slices.Concat(parts[:index]...))
	}
	r.firstIndex += b.FirstMicroBatch
	r.states, _ = p.statePool.Get().([][]microBatch)
	if len(r.states) == 0 || len(r.states[0]) != len(r.parts) {
		r.states = make([][]microBatch, len(p.stages))
		for s := range r.states {
			r.states[s] = make([]microBatch, len(r.parts))
			for i := range r.states[s] {
				r.states[s][i].init(p.stages[s])
			}
		}
	}
	if p.cfg.DeferredBatchNorm && training {
		for range p.stages {
			r.deferred = append(r.deferred, new(nn.Deferred))
		}
	}
	return r, nil
}

// countStep numbers the step of a training run. p.submit must be held. undo is for a pass that fails.
func (r *run) countStep() (undo func()) {
	p, was := r.p, r.p.steps
	if r.stepKnown || !r.training {
		return func() {}
	}
	if r.step = was; r.batch.FirstMicroBatch > 0 {
		r.step = max(was-1, 0)
	}
	if r.batch.Step != nil {
		r.step = *r.batch.Step
	}
	r.stepKnown, p.steps = true, r.step+1
	return func() {
		p.submit.Lock()
		defer p.submit.Unlock()
		if p.steps == r.step+1 {
			p.steps = was
		}
	}
}

// replicaParts splits a training batch into the micro-batches of each replica, or returns nil if
// there are fewer rows than replicas.
func (p *Pipe) replicaParts(total int64) (parts [][]rows) {
	count, _ := p.cfg.replicas()
	if total < int64(count) {
		return nil
	}
	for _, of := range split(total, count) {
		list := split(of.length, p.cfg.Chunks)
		for i := range list {
			list[i].start += of.start
		}
		parts = append(parts, list)
	}
	return parts
}

// MicroBatches is the number of micro-batches of a training batch in all replicas together.
func (p *Pipe) MicroBatches(rows int64) int { return len(slices.Concat(p.replicaParts(rows)...)) }

// open makes the run's links and executions for a plan.
func (r *run) open(plan *prepared) {
	if r.localLink != nil {
		return
	}
	for stage, cut := range plan.segments {
		for i := range r.states[stage] {
			r.states[stage][i].execution.Begin(cut, func(c *torch.Ctx, run segment.Run) *nn.Ctx {
				return r.context(c, stage, i, run)
			})
		}
	}
	r.localLink = r.p.newLink(func() bool { return r.failed.Load() })
	if r.p.remote != nil {
		r.remoteLink = r.p.remote.Open(plan.plan.Program.Capacity)
	}
}

// setLoss makes a loss the last layer of the last stage. The batch must have targets for it.
func (r *run) setLoss(loss nn.Loss) error {
	r.loss = loss
	switch total, err := countRows("target", r.batch.Target, false, r.p.last()); {
	case err != nil:
		return err
	case total != r.total:
		return fmt.Errorf("pipe: the input has %d rows, the target %d; want the same", r.total, total)
	}
	c := torch.NewCtx(torch.Options{Device: r.p.last().Device})
	defer c.Close()
	c.SetGrad(false)
	return torch.Try(func() {
		for _, part := range r.parts {
			targets := part.views(c, r.batch.Target)
			for _, t := range targets {
				c.Keep(t)
			}
			r.targets = append(r.targets, targets)
			r.weights = append(r.weights, nn.LossWeight(c, loss, part.length, targets))
		}
		all := rows{0, r.total}.views(c, r.batch.Target)
		r.weight = cmp.Or(r.batch.TotalWeight, nn.LossWeight(c, loss, r.total, all))
	})
}

func (r *run) operations(stage, microBatch int) operations {
	if !r.withBackward {
		return forwardOnly
	}
	return r.plan.operations[stage][microBatch]
}

// free frees everything but the outputs.
func (r *run) free() {
	torch.FreeAll(slices.Concat(append(r.targets, r.inputGrads)...))
	r.targets, r.inputGrads = nil, nil
	for s := range r.states {
		for i := range r.states[s] {
			r.states[s][i].free()
		}
	}
	for _, l := range []link.Link{r.localLink, r.remoteLink} {
		if l != nil {
			l.Free()
		}
	}
	for _, d := range r.deferred {
		d.Free()
	}
	if r.states != nil {
		r.p.statePool.Put(r.states)
		r.states = nil
	}
}

func (r *run) state(a schedule.Action) *microBatch { return &r.states[a.Stage][a.MicroBatch] }

func (r *run) last(stage int) bool { return stage == len(r.p.stages)-1 }

// microBatch is the state of a micro-batch on a stage between actions. All tensors are kept
// (torch.Ctx.Keep). Equal elements of a tuple are equal pointers.
type microBatch struct {
	execution segment.Execution
	in        segment.Arrival // until the execution takes it; on the first stage views of the batch
	sent      []*torch.Tensor // output of a forward without a graph, until it is sent or gathered
	outGrad   []*torch.Tensor // by output; nil if absent
	inGrad    []*torch.Tensor // by input
	skips     []skipState     // by skip of the stage
	ties      []tieState      // by tie of the stage
	loss      float64
	reading   *torch.Tensor // copy of a GPU's loss, which is ready when the run has ended
}

// skipState is the state of a skip on a stage that stashes or pops it.
type skipState struct {
	sent     *torch.Tensor     // stashed here without a graph, until it is sent
	left     int               // number of stages to send it to
	grads    [][]*torch.Tensor // by stage that pops it, by pop
	popGrads []*torch.Tensor   // gradients of the pops here, until they are sent
}

type tieState struct {
	later *torch.Tensor // sum over the uses on later stages
	sum   *torch.Tensor // sum over later and the uses on this stage, until it is sent
}

func (c *microBatch) init(s *Stage) {
	c.skips, c.ties = make([]skipState, len(s.skips)), make([]tieState, len(s.ties))
	for i, p := range s.skips {
		c.skips[i].grads = make([][]*torch.Tensor, len(p.to))
	}
}

// output is the output or the loss, with its graph if it has one.
func (c *microBatch) output() []*torch.Tensor {
	if c.sent != nil {
		return c.sent
	}
	xs, _, _ := c.execution.Output()
	return xs
}

// free frees everything but the loss.
func (c *microBatch) free() {
	c.execution.Free()
	for _, list := range [][]*torch.Tensor{c.in.Tensors, c.in.Skips, c.sent, c.outGrad, c.inGrad} {
		torch.FreeAll(list)
	}
	for i, p := range c.skips {
		p.sent.Free()
		torch.FreeAll(p.popGrads)
		torch.FreeAll(slices.Concat(p.grads...))
		clear(p.grads)
		c.skips[i] = skipState{grads: p.grads}
	}
	c.reading.Free()
	c.reading = nil
	for _, t := range c.ties {
		t.later.Free()
		t.sum.Free()
	}
	clear(c.ties)
	c.in, c.sent, c.outGrad, c.inGrad = segment.Arrival{}, nil, nil, nil
}

func (r *run) context(c *torch.Ctx, stage, microBatch int, run segment.Run) *nn.Ctx {
	cfg := nn.Config{
		Training: r.training, MicroBatch: r.firstIndex + microBatch, MicroBatches: len(r.parts),
		Checkpointing: run.More, Recomputing: run.Again,
		Seed: torch.Mix(r.p.cfg.Seed, uint64(r.step)), Spans: run.Graph, Skips: run.Skips,
		Extras: r.batch.Extras,
	}
	if around := r.batch.Within; around != nil {
		return around.Fork(c, cfg)
	}
	if r.deferred != nil {
		cfg.Deferred = r.deferred[stage]
	}
	if r.loss != nil && r.last(stage) {
		cfg.Loss, cfg.Target = r.loss, r.targets[microBatch]
	}
	return nn.NewCtx(c, cfg)
}

// viewBatch gives the first stage views of the micro-batch's rows of the inputs.
func (r *run) viewBatch(c *torch.Ctx, microBatch int) {
	c.SetGrad(false)
	n := len(r.batch.Input)
	in := segment.Arrival{Tensors: make([]*torch.Tensor, n), Wants: make([]bool, n), Lent: true}
	for i, v := range r.batch.Input {
		if k := slices.Index(r.batch.Input[:i], v); k >= 0 {
			in.Tensors[i] = in.Tensors[k]
		} else {
			in.Tensors[i] = c.Keep(r.parts[microBatch].part(c, v))
		}
		in.Wants[i] = r.inputGrad && v.Tensor.RequiresGrad()
	}
	r.states[0][microBatch].in = in
}

// remember copies a worker's buffers, and notes which gradients exist. undo restores the buffers
// and drops gradients that did not exist.
func (r *run) remember(worker int) (undo func()) {
	var restore []func()
	var leaves []*torch.Tensor
	for _, s := range r.p.stages {
		if s.worker == worker {
			restore = append(restore, nn.CopyBuffers(s.buffers))
			for _, q := range s.trained {
				if q.Exists() {
					leaves = append(leaves, q.Owner().Tensor())
				}
			}
		}
	}
	for _, v := range r.batch.Input {
		if worker == r.p.stages[0].worker && r.inputGrad && v.Tensor.RequiresGrad() {
			leaves = append(leaves, v.Tensor)
		}
	}
	noGrad := slices.DeleteFunc(leaves, (*torch.Tensor).HasGrad)
	return func() {
		for _, f := range restore {
			f()
		}
		for _, t := range noGrad {
			t.SetGradOf(nil)
		}
	}
}
