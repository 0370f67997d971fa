package pipe

import (
	"context"
	"errors"
	"sync"

	"penstock/torch"
)

// phase is one of the parts that all workers do together. It may panic.
type phase func(ctx context.Context, worker int, c *torch.Ctx) error

// inPhases runs phases on all workers at once, within a run that was entered and without gradients.
// A phase begins when the one before has ended on every worker. After a failure no phase begins.
// Nothing else runs on the workers in between. end is called last on each worker, also after a
// failure. It may panic too, and counts as the phase after the last. With an error, failed is its
// phase and worker the first worker that it comes from. failed is -1 if nothing was begun.
//
//	worker 0   prepare ───────┐ apply ──┐ drop
//	worker 1   prepare ──┐    │ apply   │ drop
//	                     └────┴─────────┴── all wait for all
func (p *Pipe) inPhases(ctx context.Context, phases []phase, end func(worker int)) (failed, worker int, err error) {
	if err := ctx.Err(); err != nil {
		return -1, 0, err
	}
	errs, ended := make([][]error, len(phases)+1), make([]sync.WaitGroup, len(phases))
	for i := range errs {
		errs[i] = make([]error, len(p.workers))
	}
	for i := range ended {
		ended[i].Add(len(p.workers))
	}
	var all sync.WaitGroup
	all.Add(len(p.workers))
	p.start(func(worker int, c *torch.Ctx) {
		defer all.Done()
		defer p.count(worker)()
		at := 0
		defer func() { // nobody is to wait for a worker that does not go on
			for ; at < len(phases); at++ {
				ended[at].Done()
			}
		}()
		defer func() {
			err := &errs[len(phases)][worker]
			*err = ErrGoexit // overwritten unless end ends the goroutine
			*err = inPhase(ctx, func(context.Context, int, *torch.Ctx) error { end(worker); return nil }, worker, c)
		}()
		for at < len(phases) {
			errs[at][worker] = ErrGoexit // overwritten unless the phase ends the goroutine
			errs[at][worker] = inPhase(ctx, phases[at], worker, c)
			ended[at].Done()
			ended[at].Wait()
			at++
			if errors.Join(errs[at-1]...) != nil {
				return
			}
		}
	})
	all.Wait()
	for i, list := range errs {
		for worker, err := range list {
			if err != nil {
				return i, worker, err
			}
		}
	}
	return 0, 0, nil
}

func inPhase(ctx context.Context, f phase, worker int, c *torch.Ctx) (err error) {
	defer c.Close()
	defer func() {
		if r := recover(); r != nil {
			err = cause(r)
		}
	}()
	return f(ctx, worker, c)
}
