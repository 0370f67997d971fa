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
	// Half says that some parameters have changed; go on from a saved state. A lack of memory never
	// sets Half. Without Half nothing changed.
	Half bool
	Err  error
}

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

func (e *UpdateError) Unwrap() error { return e.Err }

// Update steps an optimizer on all stages and drops all gradients. It fails with ErrAccumulating
// while replicas have their own gradients (Batch.Accumulate).
//
// Either all stages are updated or none: no parameter changes before every stage has the memory for
// its update. If the update fails, or ctx ends, before then, nothing has changed, and the update can
// be repeated. A failure of a stage is an *UpdateError.
func (p *Pipe) Update(ctx context.Context, o optim.Optimizer) error {
	_, err := p.update(ctx, "Update", o, 1, math.Inf(1), false)
	return err
}

// UpdateClipped is Update with the gradients scaled down so that their norm over all stages is at
// most maxNorm, which is more than 0. It returns the norm before scaling. An infinite norm or NaN
// is optim.ErrNotFinite. After a failure the gradients are not scaled.
func (p *Pipe) UpdateClipped(ctx context.Context, o optim.Optimizer, maxNorm float64) (float64, error) {
	return p.update(ctx, "UpdateClipped", o, 1, maxNorm, false)
}

// UpdateScaled is Update after steps with the scaler's Batch.LossScale. It divides the gradients by
// the scale, and clips them as UpdateClipped does, unless maxNorm is 0. If a gradient is infinite or
// NaN, it drops all gradients, changes nothing else, and returns updated false. The scaler then has
// the scale for the next step, or err is optim.ErrNeverFinite. Other failures do not change it.
func (p *Pipe) UpdateScaled(ctx context.Context, o optim.Optimizer, s *optim.Scaler, maxNorm float64) (
	norm float64, updated bool, err error) {
	if err := s.Validate(); err != nil {
		return 0, false, err
	}
	norm, err = p.update(ctx, "UpdateScaled", o, s.Factor(), cmp.Or(maxNorm, math.MaxFloat64), true)
	if updated = err == nil; updated || errors.Is(err, optim.ErrNotFinite) {
		err = s.Done(updated)
	}
	return norm, updated, err
}

// update divides the gradients by scale and clips them, unless maxNorm is infinite. It has the
// phases below, and no other job runs in between. After a failure only the last phase follows. It
// frees the prepared memory. It drops the gradients after a success or, with dropsNotFinite, if
// they are not finite.
//
//	worker 0   prepare ───────┐ apply ──┐ drop
//	worker 1   prepare ──┐    │ apply   │ drop
//	                     └────┴─────────┴── all wait for all
func (p *Pipe) update(ctx context.Context, call string, o optim.Optimizer, scale, maxNorm float64,
	dropsNotFinite bool) (norm float64, err error) {
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
	case ctx.Err() != nil:
		return 0, p.failGroup(ctx.Err())
	}
	p.submit.Lock()
	defer p.submit.Unlock()
	factor, half := 1.0, false // half says that parameters change
	norms, prepared := make([][]gradnorm.SquaredNorm, len(p.workers)), make([]optim.Update, len(p.workers))
	var failed *UpdateError // the first failure
	// tell tells all processes how the phase has ended in this process.
	phase := func(do func(worker int, c *torch.Ctx) error, tell func(failed error) error) {
		errs := p.do(do)()
		err := tell(errors.Join(errs...))
		if err == nil || failed != nil {
			return
		}
		failed = &UpdateError{Device: p.workers[p.mine[0]].device, Half: half, Err: err}
		for worker, err := range slices.Backward(errs) {
			if err != nil {
				failed.Device, failed.Err = p.workers[worker].device, err
			}
		}
	}
	alone := func(failed error) error { return failed }
	if !math.IsInf(maxNorm, 1) {
		phase(func(worker int, c *torch.Ctx) error {
			norms[worker] = gradnorm.Squared(c, p.paramsOf(worker))
			return nil
		}, func(failed error) error {
			all, err := p.meetNorms(ctx, slices.Concat(norms...), failed)
			if err == nil {
				norm = gradnorm.Global(all) / scale
				factor, err = gradnorm.ClipFactor(norm, maxNorm)
				factor /= scale
			}
			return err
		})
	}
	if failed == nil {
		phase(func(worker int, c *torch.Ctx) error {
			prepared[worker] = o.Prepare(c, p.paramsOf(worker))
			return ctx.Err()
		}, func(failed error) error {
			_, err := meet(ctx, p, "the update", 0, failed)
			return err
		})
	}
	if half = failed == nil; half {
		phase(func(worker int, c *torch.Ctx) error {
			c.Unlimited(func() { gradnorm.Scale(c, p.paramsOf(worker), factor) })
			prepared[worker].Apply()
			return nil
		}, alone)
	}
	drops := failed == nil || dropsNotFinite && errors.Is(failed, optim.ErrNotFinite)
	phase(func(worker int, _ *torch.Ctx) error {
		if u := prepared[worker]; u != nil {
			u.Drop()
		}
		for _, q := range p.paramsOf(worker) {
			if drops {
				q.Tensor().SetGradOf(nil)
			}
		}
		return nil
	}, alone)
	var other *group.MemberError
	switch {
	case failed == nil:
		return norm, nil
	case failed.Half || p.cfg.Group != nil && p.cfg.Group.Err() != nil:
		return norm, p.failGroup(failed)
	case errors.As(failed.Err, &other):
		return norm, other
	}
	return norm, failed // all processes know
}

func (p *Pipe) meetNorms(ctx context.Context, own []gradnorm.SquaredNorm, failed error) (
	out []gradnorm.SquaredNorm, err error) {
	mine := map[string]uint64{} // JSON has no word for NaN
	for _, n := range own {
		mine[n.Name] = math.Float64bits(n.Squared)
	}
	all, err := meet(ctx, p, "the norms of gradients", mine, failed)
	if err != nil {
		return nil, err
	}
	for _, part := range ofReplica(p.cfg, all) { // the replicas have the same
		for name, bits := range part {
			out = append(out, gradnorm.SquaredNorm{Name: name, Squared: math.Float64frombits(bits)})
		}
	}
	return out, nil
}

func (p *Pipe) paramsOf(worker int) (out []nn.NamedParam) {
	for _, s := range p.stages {
		if s.worker == worker && s.Here {
			out = append(out, s.Params()...)
		}
	}
	return out
}
