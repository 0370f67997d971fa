package pipe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"penstock.example/group"
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
// update can then be repeated, for example under a higher limit. A failure after the update has
// begun is an *UpdateError; its Half says if something has changed.
func (p *Pipe) Update(ctx context.Context, o optim.Optimizer) error {
	return p.update(ctx, "Update", &update{p: p, o: o, factor: func() (float64, error) { return 1, nil }})
}

// UpdateClipped is Update with the gradients scaled down so that their norm, over all stages
// together, is at most maxNorm, which is more than 0. It returns the norm before scaling. A norm
// that is infinite or NaN is optim.ErrNotFinite, and nothing has changed. After a failed update the
// gradients are not scaled.
func (p *Pipe) UpdateClipped(ctx context.Context, o optim.Optimizer, maxNorm float64) (norm float64, err error) {
	if _, err := optim.ClipFactor(0, maxNorm); err != nil {
		return 0, err
	}
	u := &update{p: p, o: o, norms: make([][]optim.NamedNorm, len(p.workers))}
	u.factor = sync.OnceValues(func() (float64, error) {
		norm = optim.GlobalNorm(u.norms...)
		return optim.ClipFactor(norm, maxNorm)
	})
	err = p.update(ctx, "UpdateClipped", u)
	return norm, err
}

// UpdateScaled is Update after steps whose Batch.LossScale was that of the scaler: gradients are
// divided by it, and then scaled down to maxNorm as UpdateClipped does, unless maxNorm is 0. It
// returns their norm before that. Where a gradient is infinite or NaN, updated is false: all
// gradients are dropped and nothing else has changed. The scaler then has the scale for the next
// step, or err is optim.ErrNeverFinite. Other failures leave the scaler as it is, as the update may
// be repeated.
func (p *Pipe) UpdateScaled(ctx context.Context, o optim.Optimizer, s *optim.Scaler, maxNorm float64) (norm float64, updated bool, err error) {
	if maxNorm != 0 {
		if _, err := optim.ClipFactor(0, maxNorm); err != nil {
			return 0, false, err
		}
	}
	if err := s.Validate(); err != nil {
		return 0, false, err
	}
	scale := s.Factor()
	u := &update{p: p, o: o, norms: make([][]optim.NamedNorm, len(p.workers))}
	u.factor = sync.OnceValues(func() (float64, error) {
		norm = optim.GlobalNorm(u.norms...) / scale
		clip, err := optim.ClipFactor(norm, cmp.Or(maxNorm, math.MaxFloat64))
		return clip / scale, err
	})
	err = p.update(ctx, "UpdateScaled", u)
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
	if err != nil {
		return norm, false, err
	}
	return norm, false, s.Done(false)
}

// wireNorm is an optim.NamedNorm as processes tell it each other: JSON has no word for NaN.
type wireNorm struct {
	Name    string
	Squared uint64
}

// update is an optimizer's update of all stages. Stages that share a device are updated together.
type update struct {
	p        *Pipe
	o        optim.Optimizer
	norms    [][]optim.NamedNorm     // by worker; nil where gradients are not clipped
	factor   func() (float64, error) // of the gradients, when all norms are there
	prepared []optim.Update          // by worker
}

func (p *Pipe) update(ctx context.Context, call string, u *update) error {
	leave, err := p.enter(call)
	if err != nil {
		return err
	}
	defer leave()
	if !p.placed.Load() {
		return ErrNotPlaced
	}
	if p.unsummed.Load() {
		return ErrAccumulating
	}
	u.prepared = make([]optim.Update, len(p.workers))
	phases := []phase{{u.measure, u.meetNorms}, {u.prepare, u.meetPrepared}, {u.apply, nil}, {u.drop, nil}}
	failed, worker, err := p.runPhases(ctx, phases, u.end)
	if err == nil || failed < 0 {
		return p.lost(err)
	}
	err = &UpdateError{Device: p.Devices()[worker], Half: failed >= 2, Err: err}
	var other *group.MemberError
	if failed >= 2 || p.cfg.Group != nil && p.cfg.Group.Err() != nil {
		return p.lost(err)
	} else if errors.As(err, &other) {
		return other
	}
	return err // all know
}

// meetNorms gives all processes the norms of all.
func (u *update) meetNorms(ctx context.Context, failed error) error {
	if u.norms == nil && failed == nil { // of what is not measured, nothing fails
		return nil
	}
	var mine []wireNorm
	for _, list := range u.norms {
		for _, n := range list {
			mine = append(mine, wireNorm{n.Name, math.Float64bits(n.Squared)})
		}
	}
	all, err := meet(ctx, u.p, "the norms of gradients", mine, failed)
	if err != nil {
		return err
	}
	u.norms = nil
	for _, list := range ofMine(u.p.cfg, all) { // the replicas have the same
		var norms []optim.NamedNorm
		for _, n := range list {
			norms = append(norms, optim.NamedNorm{Name: n.Name, Squared: math.Float64frombits(n.Squared)})
		}
		u.norms = append(u.norms, norms)
	}
	return nil
}

// meetPrepared ends when all processes have allocated what the update takes.
func (u *update) meetPrepared(ctx context.Context, failed error) error {
	_, err := meet(ctx, u.p, "the update", 0, failed)
	return err
}

// params lists the parameters of a worker's stages.
func (u *update) params(worker int) (out []nn.NamedParam) {
	for _, s := range u.p.stages {
		if s.worker == worker && s.Here {
			out = append(out, s.Params()...)
		}
	}
	return out
}

func (u *update) measure(_ context.Context, worker int, c *torch.Ctx) error {
	if u.norms != nil {
		u.norms[worker] = optim.SquaredNorms(c, u.params(worker))
	}
	return nil
}

func (u *update) prepare(ctx context.Context, worker int, c *torch.Ctx) error {
	if _, err := u.factor(); err != nil {
		return err
	}
	u.prepared[worker] = u.o.Prepare(c, u.params(worker))
	return ctx.Err()
}

func (u *update) apply(_ context.Context, worker int, c *torch.Ctx) error {
	factor, err := u.factor()
	c.Unlimited(func() { optim.Scale(c, u.params(worker), factor) })
	u.prepared[worker].Apply()
	return err
}

func (u *update) drop(_ context.Context, worker int, _ *torch.Ctx) error {
	for _, q := range u.params(worker) {
		q.Tensor().SetGradOf(nil)
	}
	return nil
}

// end frees what was prepared.
func (u *update) end(worker int) {
	if prepared := u.prepared[worker]; prepared != nil {
		prepared.Drop()
	}
}

// phase is one of the parts that all workers do together.
type phase struct {
	do func(ctx context.Context, worker int, c *torch.Ctx) error // may panic
	// meet is called when the phase has ended on all workers of the process, with what has failed
	// in it, where all processes have to know before the next phase begins. Nil where they need not.
	meet func(ctx context.Context, failed error) error
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
func (p *Pipe) runPhases(ctx context.Context, phases []phase, end func(worker int)) (failed, worker int, err error) {
	if err := ctx.Err(); err != nil {
		return -1, 0, err
	}
	p.submit.Lock()
	defer p.submit.Unlock()
	run := func(i int, ph phase) {
		errs := make([]error, len(p.workers))
		p.runJobs(func(worker int, c *torch.Ctx) {
			defer p.count(worker)()
			errs[worker] = ErrGoexit // overwritten unless the phase ends the goroutine
			errs[worker] = recovered(c, func() error { return ph.do(ctx, worker, c) })
		})
		others := errors.Join(errs...)
		if ph.meet != nil && p.cfg.Group != nil {
			others = ph.meet(ctx, others)
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
	for i, ph := range phases {
		if run(i, ph); err != nil {
			break
		}
	}
	run(len(phases), phase{do: func(_ context.Context, worker int, _ *torch.Ctx) error { end(worker); return nil }})
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
