package pipe

import (
	"context"
	"errors"

	"penstock/internal/arg"
	"penstock/nn"
	"penstock/schedule"
)

// Result is the result of a step.
type Result struct {
	Loss         float64 // of the whole batch
	MicroBatches int     // the real number: at most Config.Chunks, at most the rows
	Timeline     *schedule.Timeline
}

// Step runs forward, the loss on the last stage, and backward, and adds to the gradients of the
// parameters. It blocks until every worker is done. The gradients are those of the loss of the
// whole batch, also when micro-batches differ in rows: a mean of micro-batch i counts rows(i)/rows.
//
// On failure, or when ctx ends first, no further action starts, all memory of the run is freed, and
// the Pipe can be used again. Parameters are not touched. All buffers, running statistics and those
// of the user's layers, have their values from before the run, to the bit. Gradients that did not
// exist before are gone. Those that existed are unspecified, because parts of the run may have been
// added: drop them with nn.ZeroGrads. The error is an *Error if it comes from an action.
//
// A training run has the workers to itself until it has ended on all of them, so that each run can
// be undone by itself. It copies the buffers before it begins, into memory that no account counts.
func (p *Pipe) Step(ctx context.Context, b Batch, loss nn.Loss) (Result, error) {
	leave, err := p.enter("Step")
	if err != nil {
		return Result{}, err
	}
	defer leave()
	r, err := p.minibatch(ctx, b, true, true)
	if err != nil {
		return Result{}, err
	}
	if arg.Missing(loss) {
		return Result{}, errNoLoss
	}
	if err := r.setLoss(loss); err != nil {
		return Result{}, err
	}
	if err := r.prepare(ctx); err != nil {
		return Result{}, err
	}
	defer r.free()
	timeline, err := p.execute(ctx, r.prepared.programs[schedule.Whole](), r)
	if err != nil {
		return Result{}, err
	}
	out := Result{MicroBatches: len(r.parts), Timeline: timeline}
	for i := range r.parts {
		out.Loss += r.states[len(p.stages)-1][i].loss * r.weight(i)
	}
	return out, nil
}

var errNoLoss = errors.New("pipe: Step needs a loss; Forward and Backward do without")
