package pipe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"penstock.example/group"
	"penstock.example/internal/gradnorm"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/torch"
)

// UpdateError is the failure of an update.
type UpdateError struct {
	Device torch.Device // of the stages that failed
	// Half says that the update failed after parameters had begun to change. The model and the
	// optimizer are then between two steps; go on from a saved state. A lack of memory never has
	// this effect. If Half is not set, nothing has changed.
	Half bool
	Err  error
}

// Error gives the device, the cause and the remedy.
func (e *UpdateError) Error() string {
	s := fmt.Sprintf("pipe: update on %v: %v", e.Device, e.Err)
	switch {
	case e.Half:
		s += "; it broke off half done: go on from a saved state"
	case errors.Is(e.Err, torch.ErrOutOfMemory):
		s += "; nothing has changed: use a higher limit, more stages, or an optimizer with less state"
	}
	return s
}

// Unwrap is the cause.
func (e *UpdateError) Unwrap() error { return e.Err }

// Update steps an optimizer on all stages, each on its own worker, and drops all gradients. It
// blocks until that is done, and takes its turn among the runs. It fails with ErrAccumulating while
// replicas have gradients of their own (Batch.Accumulate).
//
// Either all stages are updated or none. The first parameter changes when every stage has allocated
// all that its update takes. On failure, or when ctx ends before that, parameters, gradients and
// the optimizer's state and counts are the same to the bit, and what was allocated is freed. The
// update can then be repeated. A failure after the update has begun is an *UpdateError.
func (p *Pipe) Update(ctx context.Context, o optim.Optimizer) error {
	_, err := p.update(ctx, "Update", o, 1, math.Inf(1))
	return err
}

// UpdateClipped is Update with the gradients scaled down so that their norm, over all stages
// together, is at most maxNorm, which is more than 0. It returns the norm before scaling. A norm
// that is infinite or NaN is optim.ErrNotFinite, and nothing has changed. After a failed update the
// gradients are not scaled.
func (p *Pipe) UpdateClipped(ctx context.Context, o optim.Optimizer, maxNorm float64) (norm float64,
	err error) {
	return p.update(ctx, "UpdateClipped", o, 1, maxNorm)
}

// UpdateScaled is Update after steps with the scaler's Batch.LossScale. It divides the gradients by the
// scale, and clips them as UpdateClipped does, unless maxNorm is 0. norm is theirs before clipping. If a
// gradient is infinite or NaN, all gradients are dropped, nothing else changes, and updated is false. The
// scaler then has the scale for the next step, or err is optim.ErrNeverFinite. Other failures leave the
// scaler as it is, and the update may be repeated.
func (p *Pipe) UpdateScaled(ctx context.Context, o optim.Optimizer, s *optim.Scaler, maxNorm float64) (
	norm float64, updated bool, err error) {
	if err := s.Validate(); err != nil {
		return 0, false, err
	}
	norm, err = p.update(ctx, "UpdateScaled", o, s.Factor(), cmp.Or(maxNorm, math.MaxFloat64))
	switch {
	case err == nil:
		return norm, true, s.Done(true)
	case !errors.Is(err, optim.ErrNotFinite):
		return norm, false, err
	}
	err = p.OnStages(ctx, func(stage int, _ *torch.Ctx) error {
		for _, q := range p.stages[stage].Params() {
			q.Tensor().SetGradOf(nil)
		}
		return nil
	})
	if err == nil {
		err = s.Done(false)
	}
	return norm, false, err
}

// update divides the gradients by scale and clips them, unless maxNorm is infinite. Stages that share a
// device are updated together.
func (p *Pipe) update(ctx context.Context, call string, o optim.Optimizer, scale, maxNorm float64) (
	norm float64, err error) {
	if _, err := gradnorm.ClipFactor(0, maxNorm); err != nil {
		return 0, err
	}
	leave, err := p.enter(call)
	if err != nil {
		return 0, err
	}
	defer leave()
	switch {
	case !p.placed.Load():
		return 0, ErrNotPlaced
	case p.unsummed.Load():
		return 0, ErrAccumulating
	}
	factor, clips := 1.0, !math.IsInf(maxNorm, 1)
	norms, prepared := make([][]gradnorm.Norm, len(p.workers)), make([]optim.Update, len(p.workers))
	const begins = 2 // the phase that changes parameters
	phases := []phase{
		{func(worker int, c *torch.Ctx) error {
			if clips {
				norms[worker] = gradnorm.Squared(c, p.paramsOf(worker))
			}
			return nil
		}, func(failed error) error {
			if !clips && failed == nil {
				return nil
			}
			all, err := p.meetNorms(ctx, slices.Concat(norms...), failed)
			if err == nil {
				norm = gradnorm.Global(all) / scale
				factor, err = gradnorm.ClipFactor(norm, maxNorm)
				factor /= scale
			}
			return err
		}},
		{func(worker int, c *torch.Ctx) error {
			prepared[worker] = o.Prepare(c, p.paramsOf(worker))
			return ctx.Err()
		}, func(failed error) error {
			_, err := meet(ctx, p, "the update", 0, failed)
			return err
		}},
		{func(worker int, c *torch.Ctx) error {
			c.Unlimited(func() { gradnorm.Scale(c, p.paramsOf(worker), factor) })
			prepared[worker].Apply()
			return nil
		}, nil},
		{func(worker int, _ *torch.Ctx) error {
			for _, q := range p.paramsOf(worker) {
				q.Tensor().SetGradOf(nil)
			}
			return nil
		}, nil},
	}
	failed, worker, err := p.runPhases(ctx, phases, func(worker int) {
		if u := prepared[worker]; u != nil {
			u.Drop()
		}
	})
	if err == nil || failed < 0 {
		return norm, p.lost(err)
	}
	err = &UpdateError{Device: p.Devices()[worker], Half: failed >= begins, Err: err}
	var other *group.MemberError
	if failed >= begins || p.cfg.Group != nil && p.cfg.Group.Err() != nil {
		return norm, p.lost(err)
	} else if errors.As(err, &other) {
		return norm, other
	}
	return norm, err // all know
}

// meetNorms gives all processes the norms of all.
func (p *Pipe) meetNorms(ctx context.Context, own []gradnorm.Norm, failed error) ([]gradnorm.Norm,
	error) {
	mine := map[string]uint64{} // JSON has no word for NaN
	for _, n := range own {
		mine[n.Name] = math.Float64bits(n.Squared)
	}
	all, err := meet(ctx, p, "the norms of gradients", mine, failed)
	if err != nil {
		return nil, err
	}
	var out []gradnorm.Norm
	for _, part := range ofMine(p.cfg, all) { // the replicas have the same
		for name, bits := range part {
			out = append(out, gradnorm.Norm{Name: name, Squared: math.Float64frombits(bits)})
		}
	}
	return out, nil
}

// paramsOf lists the parameters of a worker's stages.
func (p *Pipe) paramsOf(worker int) (out []nn.NamedParam) {
	for _, s := range p.stages {
		if s.worker == worker && s.Here {
			out = append(out, s.Params()...)
		}
	}
	return out
}

// phase is one of the parts that all workers do together.
type phase struct {
	do func(worker int, c *torch.Ctx) error // may panic
	// meet, unless it is nil, tells all processes that the phase has ended, or failed, on all workers of
	// this one, before the next phase begins.
	meet func(failed error) error
}

// runPhases runs phases on all workers at once, within a call that was entered and without gradients.
// A phase begins when the one before has ended on every worker. After a failure no phase begins.
// Nothing else runs on the workers in between. end is called last on each worker, also after a
// failure. It may panic too, and counts as the phase after the last. With an error, failed is its
// phase and worker the first worker that it comes from. failed is -1 if nothing was begun.
//
//	worker 0   prepare ───────┐ apply ──┐ drop
//	worker 1   prepare ──┐    │ apply   │ drop
//	                     └────┴─────────┴── all wait for all
func (p *Pipe) runPhases(ctx context.Context, phases []phase, end func(worker int)) (failed, worker int,
	err error) {
	if err := ctx.Err(); err != nil {
		return -1, 0, err
	}
	p.submit.Lock()
	defer p.submit.Unlock()
	run := func(i int, ph phase) {
		errs := make([]error, len(p.workers))
		p.submitJobs(p.synchronized(func(worker int, c *torch.Ctx) {
			defer p.count(worker)()
			errs[worker] = ErrGoexit // overwritten unless the phase ends the goroutine
			errs[worker] = recovered(c, func() error { return ph.do(worker, c) })
		}))()
		others := errors.Join(errs...)
		if ph.meet != nil {
			others = ph.meet(others)
		}
		first := slices.IndexFunc(errs, func(err error) bool { return err != nil })
		switch {
		case err != nil: // of an earlier phase
		case first >= 0:
			failed, worker, err = i, first, errs[first]
		case others != nil:
			failed, worker, err = i, p.mine[0], others
		}
	}
	for i := 0; i < len(phases) && err == nil; i++ {
		run(i, phases[i])
	}
	run(len(phases), phase{do: func(worker int, _ *torch.Ctx) error { end(worker); return nil }})
	return failed, worker, err
}

// recovered runs f, closes the context, and returns a panic as an error.
func recovered(c *torch.Ctx, f func() error) (err error) {
	defer c.Close()
	defer func() {
		if r := recover(); r != nil {
			err = cause(r)
		}
	}()
	return f()
}
