package autoremat

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"penstock.example/internal/arg"
	"penstock.example/internal/disk"
	"penstock.example/profile"
	"penstock.example/remat"
	"penstock.example/remat/planfile"
)

// Report describes a plan that was chosen.
type Report struct {
	Inputs    string // types and shapes of the batch
	Limit     int64  // in force, bytes
	Source    string // where the limit is from
	Others    int64  // live when the step began
	Units     int    // number of units in the chain
	Plan      remat.Plan
	Predicted int64 // peak of the step, bytes
	LossKnown bool  // if not, it is an estimate, and the next step may have another plan
	Solving   time.Duration
}

var errNothing = errors.New("autoremat: nothing was measured; call Measure, or train a batch")

// Chain returns the measured chain of the latest kind of batches.
func (m *Module) Chain() (profile.Chain, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.latest == nil {
		return profile.Chain{}, errNothing
	}
	return m.latest.chain, nil
}

// Solve returns the plan under a limit of bytes, beside what is live now, for the latest kind of
// batches. A limit of 0 is the one in force. Neither the limit nor the plan of the module changes;
// SetLimit and SetPlan do that. It blocks until the solver ends. The error is a *planner.MemoryError if
// there is no plan.
func (m *Module) Solve(ctx context.Context, limit int64) (remat.Plan, error) {
	if err := arg.Context(ctx, "autoremat"); err != nil {
		return remat.Plan{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s, err := m.solvable(limit)
	if err != nil {
		return remat.Plan{}, err
	}
	defer func(own accountLimit) { m.limit = own }(m.limit)
	if limit > 0 {
		m.limit.bytes, m.limit.source = limit, "Solve"
	}
	trial := *s
	m.refresh(&trial)
	p, _, err := m.solve(ctx, &trial)
	if err != nil {
		return remat.Plan{}, err
	}
	return trial.described(p)
}

// SetLimit sets the module's limit in bytes, where 0 leaves it as it is. It solves for the plan of
// the latest kind of batches, beside what is live now. Other batches get a new plan when they come.
// The error is a *planner.MemoryError if there is no plan; limit and plan are then unchanged.
func (m *Module) SetLimit(ctx context.Context, limit int64) (remat.Plan, error) {
	if err := arg.Context(ctx, "autoremat"); err != nil {
		return remat.Plan{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s, err := m.solvable(limit)
	if err != nil {
		return remat.Plan{}, err
	}
	before, was := m.limit, *s
	if limit > 0 {
		m.limit.bytes, m.limit.source = limit, "SetLimit"
	}
	s.stale, s.given = true, false
	f, err := m.choose(ctx, s)
	if err != nil {
		m.limit, *s = before, was
		return remat.Plan{}, err
	}
	m.last = f.peak()
	m.limit.enforce()
	for _, other := range m.instances {
		other.stale = other != s && !other.given
	}
	return s.plan, nil
}

// solvable is the instance of the batches that were measured last, if there is one and a limit that
// plans can be asked for.
func (m *Module) solvable(limit int64) (*instance, error) {
	switch {
	case m.closed:
		return nil, fmt.Errorf("autoremat: %w", ErrClosed)
	case m.latest == nil:
		return nil, errNothing
	case limit < 0:
		return nil, fmt.Errorf("autoremat: a limit of %d bytes; want more, or 0 for the one in force", limit)
	}
	return m.latest, nil
}

// Plan is the plan of the batches that came last: its peak and time are by the chain as it was
// measured (Chain), which counts the input and knows nothing of who else is there; so it has no
// limit.
func (m *Module) Plan() (remat.Plan, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch s := m.latest; {
	case s == nil:
		return remat.Plan{}, errNothing
	case s.ops == nil:
		return remat.Plan{}, errors.New("autoremat: there is no plan yet; call SetLimit, or train a batch")
	default:
		return s.plan, nil
	}
}

// SetPlan sets the plan for the kind of batches that p was made for, or if p does not say for the
// latest kind. Its operations may be those of baselines.None, baselines.All or baselines.Sequential
// on the chain's layers, or any other complete ones.
//
// The plan stays until SetLimit. A step that would exceed the limit with it is refused. A plan for
// another chain, of another model or of other batches, is an error.
func (m *Module) SetPlan(p remat.Plan) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.latest
	if s == nil {
		return errNothing
	}
	if p.Chain != "" {
		var found *instance
		for _, other := range m.instances {
			if other.chain.Fingerprint() == p.Chain {
				found = other
			}
		}
		if found == nil {
			return fmt.Errorf("autoremat: the plan was made for a chain %s, of another model or for other batches; "+
				"this model's, for a batch of %s, is %s", p.Chain, s.key, s.chain.Fingerprint())
		}
		s = found
	}
	if len(p.Ops) == 0 {
		return errors.New("autoremat: the plan has no operations; a plan that is not feasible cannot be run")
	}
	described, err := s.described(p)
	if err != nil {
		return err
	}
	s.plan, s.ops, s.given, s.stale = described, p.Ops, true, false
	return nil
}

// described returns a plan with the costs of the measured chain.
func (s *instance) described(p remat.Plan) (remat.Plan, error) {
	report, err := remat.Check(s.chain.Chain, p.Ops)
	if err != nil {
		return remat.Plan{}, fmt.Errorf("autoremat: %w", err)
	}
	return remat.Plan{
		Feasible: true, Peak: report.Peak, Time: report.Time, LowerBound: min(p.LowerBound, report.Time),
		Ops: p.Ops, Chain: s.chain.Fingerprint(),
	}, nil
}

// SavePlan writes the plan of the latest kind of batches to a file, which LoadPlan and penstock
// remat read. An existing file is replaced when the new one is complete.
func (m *Module) SavePlan(path string) error {
	p, err := m.Plan()
	if err != nil {
		return err
	}
	data, err := planfile.FormatPlan(p)
	if err != nil {
		return fmt.Errorf("autoremat: %w", err)
	}
	if err := disk.Write(path, func(w io.Writer) error { _, err := w.Write(data); return err }); err != nil {
		return fmt.Errorf("autoremat: saving a plan: %w", err)
	}
	return nil
}

// LoadPlan sets the plan that a file holds, as SetPlan does. A plan that does not name its chain is
// refused.
func (m *Module) LoadPlan(path string) error {
	data, err := disk.Read(path, disk.MaxJSON)
	if err != nil {
		return fmt.Errorf("autoremat: loading a plan: %w", err)
	}
	p, err := planfile.ParsePlan(data)
	if err != nil {
		return fmt.Errorf("autoremat: loading %s: %w", path, err)
	}
	if p.Chain == "" {
		return fmt.Errorf("autoremat: loading %s: the plan does not say what chain it was made for; want one that SavePlan wrote", path)
	}
	if err := m.SetPlan(p); err != nil {
		return fmt.Errorf("autoremat: loading %s: %w", path, err)
	}
	return nil
}
