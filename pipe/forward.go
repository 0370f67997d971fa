package pipe

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"penstock/schedule"
	"penstock/torch"
)

// Run is a mini-batch between forward and backward, for losses of the user's own. It belongs to one goroutine. Close it if Backward is not called.
type Run struct {
	r      *minibatch
	output *torch.Tensor
}

// Forward runs the training forward over all stages and keeps what backward needs. On failure see Step.
func (p *Pipe) Forward(ctx context.Context, b Batch) (*Run, error) {
	r, err := p.minibatch(b, true)
	if err != nil {
		return nil, err
	}
	out, err := r.run(ctx)
	if err != nil {
		r.free()
		return nil, err
	}
	return &Run{r: r, output: out.SetRequiresGrad(out.DType().IsFloat())}, nil
}

// Output is the output of the whole batch on the last device, owned by the run. It is a leaf that requires a gradient, so a loss computed from it in
// any Ctx, and that Ctx's Backward, leave the gradient that Backward wants in it.
func (run *Run) Output() *torch.Tensor { return run.output }

// MicroBatches is the real number of micro-batches.
func (run *Run) MicroBatches() int { return len(run.r.parts) }

// Backward runs the pipelined backward from the gradient of the whole output, which stays the caller's; nil is the gradient that lies in Output. It adds into the
// gradients of the parameters and closes the run. On failure see Step.
func (run *Run) Backward(ctx context.Context, grad *torch.Tensor) error {
	defer run.Close()
	if run.output == nil {
		return errors.New("pipe: this run is closed; a run has one backward")
	}
	r := run.r
	c := torch.NewCtx(torch.Options{Device: r.p.stages[len(r.p.stages)-1].Device})
	defer c.Close()
	if grad == nil {
		if grad = c.GradOf(run.output); grad == nil {
			return errors.New("pipe: the output has no gradient; run a backward of the loss first, or give one")
		}
	}
	if grad.Freed() {
		return errors.New("pipe: the gradient was freed; keep it until Backward returns")
	}
	if want, got := fmt.Sprint(run.output.Shape()), fmt.Sprint(grad.Shape()); want != got {
		return fmt.Errorf("pipe: the output's shape is %s, the gradient's %s", want, got)
	}
	r.grad = grad
	g, err := r.p.graph(programKey{len(r.parts), schedule.BackwardOnly, r.policy})
	if err != nil {
		return err
	}
	if err := r.p.enter(); err != nil {
		return err
	}
	defer r.p.open.Done()
	_, err = r.p.execute(ctx, g, r)
	return err
}

// Close frees what the run holds. Closing twice is fine.
func (run *Run) Close() {
	run.r.free()
	if run.output != nil {
		run.output.SetGradOf(nil)
		run.output.Free()
		run.output = nil
	}
}

// Eval runs the model on x in evaluation mode, pipelined, keeping nothing. The result, on the last device, is the caller's to Free.
func (p *Pipe) Eval(ctx context.Context, x *torch.Tensor) (*torch.Tensor, error) {
	r, err := p.minibatch(Batch{Input: x}, false)
	if err != nil {
		return nil, err
	}
	defer r.free()
	return r.run(ctx)
}

// run does the forward half and gathers the outputs. Only what backward needs stays in the cells.
func (r *minibatch) run(ctx context.Context) (*torch.Tensor, error) {
	p := r.p
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.open.Done()
	g, err := p.graph(programKey{len(r.parts), schedule.ForwardOnly, r.policy})
	if err != nil {
		return nil, err
	}
	if _, err := p.execute(ctx, g, r); err != nil {
		return nil, err
	}
	last := len(p.stages) - 1
	var out *torch.Tensor
	err = p.onWorker(p.stages[last].worker, func(c *torch.Ctx) {
		list := make([]*torch.Tensor, len(r.parts))
		for i := range list {
			if list[i] = r.cells[last][i].sent; list[i] == nil {
				list[i] = r.cells[last][i].out
			}
		}
		c.SetGrad(false)
		out = c.Keep(c.Cat(list, 0))
	})
	if err != nil {
		return nil, fmt.Errorf("pipe: gathering the output: %w", err)
	}
	for i := range r.parts {
		r.cells[last][i].sent.Free()
		r.cells[last][i].sent = nil
	}
	return out, nil
}

// onWorker runs f on one worker and waits for it.
func (p *Pipe) onWorker(worker int, f func(c *torch.Ctx)) (err error) {
	var done sync.WaitGroup
	done.Add(1)
	p.submit.Lock()
	p.workers[worker].jobs <- func(c *torch.Ctx) {
		defer done.Done()
		defer c.Close()
		err = torch.Try(func() { f(c) })
	}
	p.submit.Unlock()
	done.Wait()
	return err
}
