package autoremat

import (
	"context"
	"fmt"

	"penstock/remat"

	"penstock/remat/solver"
)

// search looks for plans of a batch. What the caller holds in backward makes a chain that no solver knows: the output is there apart from what is saved of it, or not, and it depends on the plan which. So
// there are two chains, and the forecast decides about the plans of both.
type search struct {
	ctx     context.Context
	m       *Module
	s       *instance
	close   remat.Chain // right for plans that have saved the last layer when the loss comes; others need more
	wary    remat.Chain // right, beside held, for plans that compute the last layer again after the loss
	held    int64
	outside int64 // live before, and to come whatever the plan
}

func (m *Module) search(ctx context.Context, s *instance) *search {
	l, c := s.known(), s.chainFor(s.present, s.lacks, givenOut)
	wary := s.chainFor(s.present, s.lacks, madeAgain)
	n := &search{ctx: ctx, m: m, s: s, close: toSolve(c, l), wary: withLoss(wary, l), outside: s.base + s.prologue.held + m.unmade()}
	n.held = max(0, l.held+l.lent+c.Layers[len(c.Layers)-1].Output)
	return n
}

// found is a plan that is good.
type found struct {
	plan     remat.Plan
	forecast forecast
	need     int64 // limit under which it can run
}

// try is the plan for a chain under a number of bytes; nil if there is none.
func (n *search) try(c remat.Chain, room int64) (*found, error) {
	if room <= 0 {
		return nil, nil
	}
	p, err := solver.Solve(n.ctx, c, room, n.m.config.Solve)
	if err != nil {
		return nil, fmt.Errorf("autoremat: %w", err)
	}
	if !p.Feasible {
		return nil, nil
	}
	f, err := n.m.forecast(n.s, p.Ops, n.s.present, n.s.lacks, n.s.base)
	if err != nil {
		return nil, err
	}
	return &found{p, f, n.m.need(f)}, nil
}

// frugal is the plan that needs least.
func (n *search) frugal() (best *found, err error) {
	for _, c := range []remat.Chain{n.close, n.wary} {
		p, err := solver.Solve(n.ctx, c, 1, n.m.config.Solve)
		if err != nil {
			return nil, fmt.Errorf("autoremat: %w", err)
		}
		f, err := n.try(c, max(p.Peak, 1))
		if err != nil {
			return nil, err
		}
		if f != nil && (best == nil || f.need < best.need) {
			best = f
		}
	}
	return best, nil
}

// shrinks is how often a plan that needs more than it seemed is looked for again with less room.
const shrinks = 3

// under is the fastest plan that was found under a limit; nil if there is none.
func (n *search) under(limit int64) (best *found, err error) {
	take := func(f *found) bool {
		if f != nil && f.need <= limit && (best == nil || f.plan.Time < best.plan.Time) {
			best = f
		}
		return best == f
	}
	room := limit - n.outside
	for range shrinks {
		f, err := n.try(n.close, room)
		if err != nil {
			return nil, err
		}
		if f == nil {
			break
		}
		if take(f) {
			if room == limit-n.outside {
				return best, nil // there is no better one
			}
			break
		}
		room -= max(f.need-limit, 1)
	}
	f, err := n.try(n.wary, limit-n.outside-n.held)
	if err != nil {
		return nil, err
	}
	take(f)
	if best == nil {
		if f, err = n.frugal(); err != nil {
			return nil, err
		}
		take(f)
	}
	return best, nil
}

// solve finds a plan. Its error is a *LimitError if there is none.
func (m *Module) solve(ctx context.Context, s *instance) (remat.Plan, forecast, error) {
	n := m.search(ctx, s)
	limit := m.bounds.most()
	f, err := n.under(limit)
	if err == nil && f == nil && s.loss == nil {
		// The guess of the loss may be too high: the plan that needs least without one leaves it all the room there is.
		s.loss = &loss{}
		f, err = m.search(ctx, s).frugal()
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
	if f, err = n.frugal(); err != nil {
		return remat.Plan{}, forecast{}, err
	}
	return remat.Plan{}, forecast{}, n.refusal(f)
}

// refusal is the error for a limit below what the most frugal plan needs.
func (n *search) refusal(f *found) *LimitError {
	m, s := n.m, n.s
	e := &LimitError{Inputs: s.key, Limit: m.bounds.most(), Least: f.need, Others: n.outside, LossKnown: s.loss != nil}
	at := 0
	for k, peak := range f.forecast.peaks {
		if peak > f.forecast.peaks[at] {
			at = k
		}
	}
	op := f.plan.Ops[at]
	switch {
	case f.forecast.end+m.updating() == e.Least:
		e.SetBy = "the optimizer's update"
		return e
	case s.base+s.prologue.peak+m.unmade() == e.Least:
		e.SetBy = "the layers in front that are not trained"
		return e
	case op.Kind == remat.LossStep:
		e.SetBy = "the loss"
		return e
	}
	direction := "forward"
	if op.Kind == remat.Backward {
		direction = "backward"
	}
	e.Layer = s.chain.Layers[op.Layer].Name
	e.SetBy = fmt.Sprintf("the %s of layer %q", direction, e.Layer)
	return e
}
