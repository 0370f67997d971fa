package autoremat

import (
	"context"
	"fmt"
	"slices"

	"penstock/remat"
	"penstock/remat/solver"
)

// search solves for the plans of a batch.
//
// The output counts differently in different plans. The caller holds the output during backward. A
// plan that saved the last layer before the loss shares that tensor. A plan that recomputes the
// last layer makes another one. No single chain has the costs of both, so both chains are solved,
// and the forecast decides between their plans.
type search struct {
	ctx        context.Context
	m          *Module
	s          *instance
	saved      remat.Chain // costs of plans that save the last layer before the loss
	recomputed remat.Chain // costs, beside held, of plans that recompute it after the loss
	held       int64
	outside    int64 // bytes that no plan changes
}

func (m *Module) search(ctx context.Context, s *instance) *search {
	l, c := s.known(), s.chainFor(s.present, s.missingBytes, outputSaved)
	recomputed := s.chainFor(s.present, s.missingBytes, outputRecomputed)
	n := &search{ctx: ctx, m: m, s: s, saved: solverChain(c, l), recomputed: withLoss(recomputed, l)}
	n.outside = s.base + s.prologue.held + m.stateToCome()
	n.held = max(0, l.held+l.lent+c.Layers[len(c.Layers)-1].Output)
	return n
}

// candidate is a plan with its forecast.
type candidate struct {
	plan     remat.Plan
	forecast forecast
	need     int64 // least limit under which it runs, bytes
}

// solve returns the plan for a chain in the available bytes; nil if there is none.
func (n *search) solve(c remat.Chain, available int64) (*candidate, error) {
	if available <= 0 {
		return nil, nil
	}
	p, err := solver.Solve(n.ctx, c, available, n.m.config.Solve)
	if err != nil {
		return nil, fmt.Errorf("autoremat: %w", err)
	}
	if !p.Feasible {
		return nil, nil
	}
	f, err := n.m.forecast(n.s, p.Ops, n.s.present, n.s.missingBytes, n.s.base)
	if err != nil {
		return nil, err
	}
	return &candidate{p, f, n.m.leastLimit(f)}, nil
}

// leastMemory returns the plan that needs the fewest bytes.
func (n *search) leastMemory() (best *candidate, err error) {
	for _, c := range []remat.Chain{n.saved, n.recomputed} {
		p, err := solver.Solve(n.ctx, c, 1, n.m.config.Solve)
		if err != nil {
			return nil, fmt.Errorf("autoremat: %w", err)
		}
		f, err := n.solve(c, max(p.Peak, 1))
		if err != nil {
			return nil, err
		}
		if f != nil && (best == nil || f.need < best.need) {
			best = f
		}
	}
	return best, nil
}

// retries is how often the solver runs again with fewer bytes after a plan whose forecast exceeds
// the limit.
const retries = 3

// fastestUnder returns the fastest plan found under a limit; nil if there is none.
func (n *search) fastestUnder(limit int64) (best *candidate, err error) {
	take := func(f *candidate) bool {
		if f != nil && f.need <= limit && (best == nil || f.plan.Time < best.plan.Time) {
			best = f
		}
		return best == f
	}
	available := limit - n.outside
	for range retries {
		f, err := n.solve(n.saved, available)
		if err != nil {
			return nil, err
		}
		if f == nil {
			break
		}
		if take(f) {
			if available == limit-n.outside {
				return best, nil // it is optimal for the whole limit
			}
			break
		}
		available -= max(f.need-limit, 1)
	}
	f, err := n.solve(n.recomputed, limit-n.outside-n.held)
	if err != nil {
		return nil, err
	}
	take(f)
	if best == nil {
		if f, err = n.leastMemory(); err != nil {
			return nil, err
		}
		take(f)
	}
	return best, nil
}

// solve returns a plan under the limit in force, with its forecast. The error is a *planner.MemoryError if
// there is none.
func (m *Module) solve(ctx context.Context, s *instance) (remat.Plan, forecast, error) {
	n := m.search(ctx, s)
	limit := m.limit.inForce()
	f, err := n.fastestUnder(limit)
	if err == nil && f == nil && s.loss == nil {
		// The estimate of the loss may be too high. The plan of least memory leaves the most bytes
		// to the real one.
		s.loss = &loss{}
		f, err = m.search(ctx, s).leastMemory()
		s.loss = nil
		if f != nil && f.need > limit {
			f = nil
		}
	}
	switch {
	case err != nil:
		return remat.Plan{}, forecast{}, err
	case f != nil:
		return f.plan, f.forecast, nil
	}
	if f, err = n.leastMemory(); err != nil {
		return remat.Plan{}, forecast{}, err
	}
	return remat.Plan{}, forecast{}, m.shortage(s, f.need, n.outside, n.setBy(f))
}

// setBy names what of f, the plan of least memory, needs most.
func (n *search) setBy(f *candidate) string {
	m, s := n.m, n.s
	switch f.need {
	case f.forecast.end + m.updateToCome():
		return "the optimizer's update"
	case s.base + s.prologue.peak + m.stateToCome():
		return "the layers in front that are not trained"
	}
	op := f.plan.Ops[slices.Index(f.forecast.peaks, slices.Max(f.forecast.peaks))]
	switch op.Kind {
	case remat.LossStep:
		return "the loss"
	case remat.Backward:
		return fmt.Sprintf("the backward of layer %q", s.chain.Layers[op.Layer].Name)
	}
	return fmt.Sprintf("the forward of layer %q", s.chain.Layers[op.Layer].Name)
}
