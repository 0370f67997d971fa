package pipe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"penstock.example/internal/arg"
	"penstock.example/internal/link"
	"penstock.example/nn"
	"penstock.example/segment"
	"penstock.example/torch"
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
	memory    []uintptr // of inputs, which the caller keeps
	targets   []Value
	inputGrad bool // an input wants its gradient
	loss      nn.Loss
	// grads are the gradients of the whole outputs, for a backward without a loss; nil where an
	// output has none.
	grads []*torch.Tensor
	// joined has the rows of each output, by micro-batch, in the whole output. They may be other
	// rows than those of the input.
	joined   [][]rows
	parts    []rows // of this replica
	before   int    // micro-batches of the update so far, and of the replicas before
	total    int64
	states   [][]microBatchState // [stage][micro-batch]
	link     link.Link
	deferred []*nn.Deferred // by stage, or nil

	// The last stage's worker owns these.
	wanted     [][]*torch.Tensor // targets by micro-batch, views that the first forward makes
	lossGrad   *torch.Tensor     // the gradient of a micro-batch's loss: lossWeight
	lossWeight float64
	lossType   torch.DType

	prepared *prepared    // the plan; nil without a backward
	rooms    map[int]room // of the stages of other processes

	gathers    bool            // the run ends with gathering the outputs
	outputs    []*torch.Tensor // gathered, kept
	ungradient []Value         // inputs that want a gradient and had none when the run began
	inputGrads []*torch.Tensor // of the inputs of a batch within a layer
}

// minibatch checks a batch and splits it.
func (p *Pipe) minibatch(ctx context.Context, b Batch, training, graph bool) (*minibatch, error) {
	if err := arg.Context(ctx, "pipe"); err != nil {
		return nil, err
	}
	if err := cmp.Or(p.undivided(b), p.notice()); err != nil {
		return nil, err
	}
	inputs := b.Input
	if len(inputs) == 0 {
		return nil, errNoInput
	}
	total, err := countRows("input", inputs, b.Within != nil)
	if err != nil {
		return nil, err
	}
	if b.Within != nil {
		b.Extras = b.Within.Extras()
	}
	if total == 0 && training {
		return nil, fmt.Errorf("pipe: the batch has no rows (input 0 is %v); a training step needs at least one", inputs[0].Tensor)
	}
	if err := cmp.Or(checkKind("input", inputs, "first", p.stages[0]), b.checkPlace(total)); err != nil {
		return nil, err
	}
	r := &minibatch{p: p, training: training, graph: graph, batch: b, inputs: inputs,
		inputGrad: graph && requiresGrad(inputs), total: total}
	if r.parts, r.before, err = p.share(total, graph); err != nil {
		return nil, err
	}
	r.before += b.FirstMicroBatch
	for _, v := range inputs {
		memory, _ := v.Tensor.Storage()
		r.memory = append(r.memory, memory)
	}
	r.states, _ = p.spare.Get().([][]microBatchState)
	if len(r.states) == 0 || len(r.states[0]) != len(r.parts) {
		r.states = make([][]microBatchState, len(p.stages))
		for s := range r.states {
			r.states[s] = make([]microBatchState, len(r.parts))
			for i := range r.states[s] {
				r.states[s][i].init(p.stages[s])
			}
		}
	}
	for s := range r.states {
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

// share is the micro-batches of a batch of so many rows. In training each replica has some of the
// rows, and before is the number of micro-batches of those before it. Without a backward each has
// all.
func (p *Pipe) share(total int64, graph bool) (parts []rows, before int, err error) {
	count, index := p.cfg.replicas()
	if !graph || count == 1 {
		return split(total, p.cfg.Chunks), 0, nil
	}
	if total < int64(count) {
		return nil, 0, fmt.Errorf("pipe: the batch has %d rows for %d replicas; want at least one for each", total, count)
	}
	for k, of := range split(total, count) {
		parts = split(of.length, p.cfg.Chunks)
		for i := range parts {
			parts[i].start += of.start
		}
		if k == index {
			break
		}
		before += len(parts)
	}
	return parts, before, nil
}

// MicroBatches is into how many micro-batches a batch of so many rows is split in training, in all
// replicas together. It is 0 for fewer rows than there are replicas.
func (p *Pipe) MicroBatches(rows int64) (n int) {
	count, _ := p.cfg.replicas()
	if rows < int64(count) {
		return 0
	}
	for _, of := range split(rows, count) {
		n += len(split(of.length, p.cfg.Chunks))
	}
	return n
}

// open makes the link of the run of a plan. Its backward goes over the link of its forward.
func (r *minibatch) open(prepared *prepared) {
	if r.link == nil {
		r.link = r.p.linkOf(prepared.plan.Program)
	}
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
	total, err := countRows("target", r.targets, false)
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
	torch.FreeAll(r.inputGrads)
	r.inputGrads = nil
	for s := range r.states {
		for i := range r.states[s] {
			r.states[s][i].free()
		}
	}
	if r.link != nil {
		r.link.Free()
	}
	for _, d := range r.deferred {
		d.Free()
	}
	if r.states != nil {
		r.p.spare.Put(r.states)
		r.states = nil
	}
}

// last says whether a stage is the last one.
func (r *minibatch) last(stage int) bool { return stage == len(r.p.stages)-1 }

// microBatchState is what a stage holds of a micro-batch between actions. Only the worker of the
// stage uses it. All tensors are kept (torch.Ctx.Keep). A tensor that is in a tuple twice is the
// same pointer twice.
type microBatchState struct {
	execution segment.Execution
	// in is what the stage has received, until the execution takes it. On the first stage it has
	// views of the batch.
	in segment.Arrival
	// sent is the output of a forward without a graph, until it is sent to the next stage or
	// gathered.
	sent []*torch.Tensor
	// out is the output or the loss, with the graph for backward. It belongs to the execution.
	out     []*torch.Tensor
	outGrad []*torch.Tensor // by output; nil where there is none
	inGrad  []*torch.Tensor // by input
	skips   []skipState     // by skip of the stage
	ties    []tieState      // by tie of the stage
	loss    float64
	reading *torch.Tensor // the loss on its way from a GPU, until the run has ended
}

// skipState is what a stage holds of a skip that leaves or enters it.
type skipState struct {
	in    *torch.Tensor     // what was received, until the execution takes it
	wants bool              // a gradient of it is wanted
	sent  *torch.Tensor     // stashed here without a graph, until it is sent
	left  int               // number of stages that it is still to be sent to
	out   *torch.Tensor     // stashed here with its graph; belongs to the execution
	grads [][]*torch.Tensor // by stage that pops it: the gradients, in the order of the pops
	back  []*torch.Tensor   // gradients of the pops here, until they are sent
}

// tieState is what a stage holds of the gradient of a parameter that several stages use.
type tieState struct {
	later *torch.Tensor // sum over the uses on later stages
	back  *torch.Tensor // later and the uses on this stage, until it is sent
}

func (c *microBatchState) init(s *Stage) {
	if n := len(s.skips); n > 0 {
		c.skips = make([]skipState, n)
		for i, p := range s.skips {
			c.skips[i].grads = make([][]*torch.Tensor, len(p.to))
		}
	}
	if n := len(s.ties); n > 0 {
		c.ties = make([]tieState, n)
	}
}

// free frees everything. The loss stays.
func (c *microBatchState) free() {
	c.execution.Free()
	for _, list := range [][]*torch.Tensor{c.in.Tensors, c.sent, c.outGrad, c.inGrad} {
		torch.FreeAll(list)
	}
	for i := range c.skips {
		p := &c.skips[i]
		p.in.Free()
		p.sent.Free()
		torch.FreeAll(p.back)
		for k := range p.grads {
			torch.FreeAll(p.grads[k])
			p.grads[k] = nil
		}
		*p = skipState{grads: p.grads}
	}
	c.reading.Free()
	c.reading = nil
	for _, t := range c.ties {
		t.later.Free()
		t.back.Free()
	}
	clear(c.ties)
	c.in, c.sent, c.out, c.outGrad, c.inGrad = segment.Arrival{}, nil, nil, nil, nil
}

// weight is the factor of a micro-batch, with which the losses add up to the loss of the whole
// batch, or of all batches of the update. Of a mean it is the share of the rows, of a sum 1.
func (r *minibatch) weight(microBatch int) float64 {
	if r.loss.Reduction() == torch.ReduceSum || r.total == 0 {
		return 1
	}
	return float64(r.parts[microBatch].length) / float64(cmp.Or(r.batch.TotalRows, r.total))
}

// gradOfLoss is the gradient of a micro-batch's loss: its weight. The micro-batches of a mini-batch
// have at most two weights, so a tensor is shared by those of the same weight. With the policy
// Optimal each gets a tensor of its own, because the plan counts it so.
func (r *minibatch) gradOfLoss(c *torch.Ctx, weight float64) *torch.Tensor {
	if r.p.optimal() {
		return c.Fill_(c.Empty(r.lossType), weight)
	}
	if r.lossGrad == nil || r.lossWeight != weight {
		r.lossGrad.Free()
		r.lossGrad, r.lossWeight = c.Keep(c.Fill_(c.Empty(r.lossType), weight)), weight
	}
	return c.Share(r.lossGrad)
}

// readLoss reads a micro-batch's loss. It is in the state with its graph, or given without one.
func (r *minibatch) readLoss(c *torch.Ctx, state *microBatchState, given []*torch.Tensor) {
	if len(state.out) > 0 {
		given = state.out
	}
	loss := given[0]
	if r.lossType = loss.DType(); c.Device().Kind == torch.KindCPU {
		state.loss = number(c, loss, r.lossType)
	} else {
		state.reading = c.Keep(c.ToHost(loss))
	}
}

// lossOf is the loss of a micro-batch, after the run.
func (r *minibatch) lossOf(microBatch int) float64 {
	state := &r.states[len(r.p.stages)-1][microBatch]
	if state.reading != nil {
		c := torch.NewCtx(torch.Options{})
		defer c.Close()
		state.loss = number(c, state.reading, state.reading.DType())
		state.reading.Free()
		state.reading = nil
	}
	return state.loss
}

// number reads a loss of a floating-point type.
func number(c *torch.Ctx, t *torch.Tensor, of torch.DType) float64 {
	switch of {
	case torch.Float64:
		return torch.Item[float64](t)
	case torch.Float32:
		return float64(torch.Item[float32](t))
	}
	return torch.Item[float64](c.To(c.Detach(t), torch.Float64))
}

// context makes the context in which a unit runs its layers on a micro-batch.
func (r *minibatch) context(c *torch.Ctx, stage, microBatch int, run segment.Run) *nn.Ctx {
	if around := r.batch.Within; around != nil {
		return around.Fork(c, nn.Fork{Checkpointing: run.More, Recomputing: run.Again, Spans: run.Graph, Skips: run.Skips})
	}
	cfg := nn.Config{
		Training: r.training, MicroBatch: r.before + microBatch, MicroBatches: len(r.parts),
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
		if k := slices.Index(r.inputs[:i], v); k >= 0 {
			in.Tensors[i] = in.Tensors[k]
		} else {
			in.Tensors[i] = c.Keep(r.parts[microBatch].part(c, v))
		}
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
