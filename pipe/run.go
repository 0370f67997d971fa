package pipe

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"penstock.example/nn"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// Result is the result of Step or Infer.
type Result struct {
	Loss float64 // of the whole batch, in a step
	// Output is the model's output for the whole batch of Infer, on the last device, in the process of
	// the last stage; nil with Batch.Each. The caller frees it.
	Output       []*torch.Tensor
	MicroBatches int                // the real number: at most Config.Chunks, at most the rows
	Timeline     *schedule.Timeline // if Config.Record is set
}

// Step runs forward, the loss on the last stage, and backward, and adds to the gradients of the
// parameters. It blocks until every worker is done. Loss and gradients are the whole batch's: a mean
// is weighted by rows, or by nn.LossWeight.
//
// On failure, or when ctx ends first, the run's memory is freed, and the Pipe can be used again.
// Buffers, such as running statistics, are restored to the bit. Their copies do not count as live.
// Gradients that did not exist before are dropped. Others are unspecified: drop them with
// nn.ZeroGrads. The error of an action is an *Error.
func (p *Pipe) Step(ctx context.Context, b Batch, loss nn.Loss) (result Result, err error) {
	leave, err := p.enter("Step")
	if err != nil {
		return Result{}, err
	}
	defer leave()
	defer func() { err = p.failGroup(err) }()
	if loss == nil {
		return Result{}, errors.New("pipe: Step needs a loss; Forward and Backward do without")
	}
	r, err := p.plannedRun(ctx, b, loss)
	if err != nil {
		return Result{}, err
	}
	defer r.free()
	if r.weight == 0 {
		return Result{}, errors.New("pipe: no target of the batch counts in the loss; take larger batches, " +
			"longer windows, or leave such samples out")
	}
	timeline, err := r.execute(ctx, r.plan.programs[schedule.Whole]())
	if err != nil {
		return Result{}, err
	}
	r.noteUnsummed()
	out := Result{MicroBatches: len(r.parts), Timeline: timeline}
	for i := range r.parts {
		if share := r.lossShare(i); share != 0 {
			out.Loss += r.lossOf(i) * share
		}
	}
	out.Loss, err = p.sumOfReplicas(ctx, "the loss", out.Loss)
	return out, err
}

// plannedRun makes a training run with its plan, after enter. loss is nil for Forward.
func (p *Pipe) plannedRun(ctx context.Context, b Batch, loss nn.Loss) (*run, error) {
	b.Each = nil
	if loss == nil {
		b.Target = nil
	}
	r, err := p.newRun(b, true, true)
	if err != nil {
		return nil, err
	}
	if loss != nil {
		err = r.setLoss(loss)
	}
	if err == nil {
		err = r.findPlan(ctx)
	}
	if err != nil {
		r.free()
		return nil, err
	}
	return r, nil
}

// sumOfReplicas sums the numbers of the last stage's processes, in the order of replicas.
func (p *Pipe) sumOfReplicas(ctx context.Context, what string, x float64) (float64, error) {
	if p.cfg.Group == nil {
		return x, nil
	}
	all, err := meet(ctx, p, what, math.Float64bits(x), nil) // JSON has no word for NaN
	if err != nil {
		return 0, err
	}
	count, _ := p.cfg.replicas()
	sum := 0.0
	for k := range count {
		sum += math.Float64frombits(all[p.cfg.rank(len(p.stages)-1, k)])
	}
	return sum, nil
}

// Run is a mini-batch between forward and backward, for the caller's own loss. One goroutine uses
// it. Backward closes it. Without a Backward call Close.
type Run struct {
	r          *run
	closed     bool
	inputGrads []*torch.Tensor // of a batch within a layer, until they are taken
}

// Forward runs the training forward over all stages and keeps the tensors for backward. It fails as
// Step does, and with a *ConfigError if the schedule puts backwards before forwards.
func (p *Pipe) Forward(ctx context.Context, b Batch) (run *Run, err error) {
	leave, err := p.enter("Forward")
	if err != nil {
		return nil, err
	}
	defer leave()
	defer func() { err = p.failGroup(err) }()
	r, err := p.plannedRun(ctx, b, nil)
	if err != nil {
		return nil, err
	}
	if !r.plan.plan.Program.Apart() {
		r.free()
		return nil, refuse("Schedule", unquoted("not one for Forward"),
			"its workers do backwards before forwards that the output of Forward needs",
			"want one such as schedule.GPipe, or Step, which computes the loss of each micro-batch")
	}
	if _, err := r.forwardAll(ctx, r.plan); err != nil {
		return nil, err
	}
	for _, t := range r.outputs {
		t.SetRequiresGrad(t.DType().IsFloat() && b.Within == nil)
	}
	return &Run{r: r}, nil
}

// Output is the model's output for the whole batch, on the last device; nil after Close, and in a
// process without the last stage. The run owns it. Its floating-point tensors are leaves, to which
// the backward of the caller's loss, in any Ctx, gives the gradients for Backward.
func (run *Run) Output() []*torch.Tensor { return run.r.outputs }

func (run *Run) MicroBatches() int { return len(run.r.parts) }

// Backward adds to the gradients of the parameters and closes the run. grads are the gradients of
// Output's tensors, nil if absent; they stay the caller's. Without grads Backward reads the
// gradients in Output, where a backward of the loss has left them. It fails as Step does, and then
// leaves the model as after Forward.
func (run *Run) Backward(ctx context.Context, grads ...*torch.Tensor) error {
	return run.backward(ctx, "Backward", false, grads)
}

// BackwardRetained is Backward, but keeps the tensors for a further backward of the run, and drops
// the gradients in Output. The policy Optimal does not plan for the kept memory. The Backward that
// closes the run sums the gradients of replicas. On failure the run is closed.
func (run *Run) BackwardRetained(ctx context.Context, grads ...*torch.Tensor) error {
	err := run.backward(ctx, "BackwardRetained", true, grads)
	if err == nil && len(grads) == 0 {
		for _, t := range run.r.outputs {
			t.SetGradOf(nil)
		}
	}
	return err
}

// backward closes the run, unless it retains and succeeds, or fails with ErrNested.
func (run *Run) backward(ctx context.Context, call string, retain bool, grads []*torch.Tensor) (err error) {
	r := run.r
	leave, err := r.p.enter(call)
	if errors.Is(err, ErrNested) {
		return err
	}
	defer func() {
		if err = r.p.failGroup(err); err != nil || !retain {
			run.Close()
		}
	}()
	if err != nil {
		return err
	}
	defer leave()
	if run.closed {
		return errors.New("pipe: this run is closed; before its one Backward use BackwardRetained")
	}
	if last := r.p.last(); r.batch.Within == nil && last.Here {
		c := torch.NewCtx(torch.Options{Device: last.Device})
		defer c.Close()
		if grads, err = run.checkGrads(c, grads); err != nil {
			return err
		}
	}
	r.grads, r.retain = grads, retain
	if err := r.p.checkNoSummedGrads(); err != nil {
		return err
	}
	_, err = r.execute(ctx, r.plan.programs[schedule.BackwardOnly]())
	if err == nil {
		run.inputGrads, r.inputGrads = r.inputGrads, nil
		r.noteUnsummed()
	}
	return err
}

func (run *Run) checkGrads(c *torch.Ctx, grads []*torch.Tensor) ([]*torch.Tensor, error) {
	if len(grads) == 0 {
		for _, t := range run.r.outputs {
			grads = append(grads, c.GradOf(t))
		}
	}
	for i, g := range grads {
		if g == nil || i >= len(run.r.outputs) {
			continue
		}
		if y := run.r.outputs[i]; g.Freed() || !y.DType().IsFloat() || !g.DType().IsFloat() ||
			!slices.Equal(g.Shape(), y.Shape()) || g.Kind() != y.Kind() {
			return nil, fmt.Errorf("pipe: gradient %d is %v for output %d, %v on %v; want a floating-point "+
				"tensor of its shape and kind of device, or nil", i, g, i, y, y.Kind())
		}
	}
	given := countOf(grads, func(g *torch.Tensor) bool { return g != nil })
	if n := len(run.r.outputs); len(grads) != n || given == 0 {
		return nil, fmt.Errorf("pipe: gradients %v for %d outputs; run a backward of the loss first", grads,
			n)
	}
	return grads, nil
}

// InputGrads moves the gradients of the inputs of a batch within a layer to the caller; nil are absent.
func (run *Run) InputGrads() []*torch.Tensor {
	out := run.inputGrads
	run.inputGrads = nil
	return out
}

// Close frees the run's memory. A layer must not close the run that it is in.
func (run *Run) Close() {
	run.closed = true
	run.r.free()
	for _, t := range run.r.outputs {
		if !t.Freed() { // false if a layer has handed it on
			t.SetGradOf(nil)
			t.Free()
		}
	}
	run.r.outputs = nil
}

// forwardAll runs the forward half of a plan and gathers the outputs.
func (r *run) forwardAll(ctx context.Context, plan *prepared) (*schedule.Timeline, error) {
	r.open(plan)
	r.gathers = r.batch.Each == nil
	timeline, err := r.execute(ctx, plan.programs[schedule.ForwardOnly]())
	r.gathers = false
	if err != nil {
		torch.FreeAll(r.outputs)
		r.free()
	}
	return timeline, err
}

// Infer runs the model forward without gradients, in evaluation mode unless b.Training is set. A
// batch may have any number of rows, with b.Training at least one. It fails as Step does.
func (p *Pipe) Infer(ctx context.Context, b Batch) (result Result, err error) {
	leave, err := p.enter("Infer")
	if err != nil {
		return Result{}, err
	}
	defer leave()
	defer func() { err = p.failGroup(err) }()
	r, err := p.newRun(b, b.Training, false)
	if err != nil {
		return Result{}, err
	}
	defer r.free()
	plan, err := p.unmeasuredPlan(len(r.parts), false)
	if err != nil {
		return Result{}, err
	}
	timeline, err := r.forwardAll(ctx, plan)
	if err != nil {
		return Result{}, err
	}
	return Result{Output: r.outputs, MicroBatches: len(r.parts), Timeline: timeline}, nil
}
