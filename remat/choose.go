package remat

import (
	"context"
	"fmt"
	"time"

	"penstock/nn"
	"penstock/remat/plan"
)

// choose makes sure that an instance has a plan under the limit, given what is live now, and says what the step will take.
func (m *Module) choose(ctx context.Context, s *instance) (forecast, error) {
	s.base = m.bounds.device.Memory().Live
	s.present, s.lacks = m.presences(s.chain)
	if s.ops != nil && !s.stale {
		f, err := m.forecast(s, s.ops, s.present, s.lacks, s.base)
		if err != nil {
			return f, err
		}
		if need := m.need(f); need <= m.bounds.most() {
			return f, nil
		} else if s.given {
			return f, &LimitError{Inputs: s.key, Limit: m.bounds.most(), Least: need, Others: s.base, SetBy: "the plan that was set"}
		}
	}
	started := time.Now()
	p, f, err := m.solve(ctx, s)
	if err != nil {
		return f, err
	}
	s.ops, s.stale = p.Ops, false
	if s.plan, err = s.described(p); err != nil {
		return f, err
	}
	if m.config.Report != nil {
		m.config.Report(Report{
			Inputs: s.key, Limit: m.bounds.most(), Source: m.bounds.source, Plan: s.plan, Predicted: f.most(), Others: s.base, LossKnown: s.loss != nil, Solving: time.Since(started), Units: len(s.chain.Layers),
		})
	}
	return f, nil
}

// known is the loss, or a guess.
func (s *instance) known() loss {
	if s.loss != nil {
		return *s.loss
	}
	return guess(s.chain.Layers[len(s.chain.Layers)-1].Output)
}

// forecast is that of operations beside what is live.
func (m *Module) forecast(s *instance, ops []plan.Op, present []presence, lacks []int64, base int64) (forecast, error) {
	l := s.known()
	f, err := forecastOf(withLoss(s.chainFor(present, lacks), l), ops, l)
	if err != nil {
		return f, fmt.Errorf("remat: %w", err)
	}
	from := base + s.prologue.held
	f.forward, f.loss, f.backward, f.end = max(base+s.prologue.peak, from+f.forward), from+f.loss, from+f.backward, from+f.end
	if m.update != nil {
		peak, _ := m.update.need()
		f.update = f.end + peak
	}
	return f, nil
}

// unmade is the bytes of the optimizer's state that are still to be made.
func (m *Module) unmade() int64 {
	if m.update != nil {
		_, bytes := m.update.need()
		return bytes
	}
	if m.steps > 0 {
		return 0
	}
	sum := int64(0)
	for _, p := range nn.Params(m.model) {
		sum += p.Numel() * p.DType().Size()
	}
	return sum * int64(m.config.Slots)
}

// updating is what updates take beside what there is at the end of backward and the state, from now on.
func (m *Module) updating() (peak int64) {
	if m.update != nil {
		first, _ := m.update.need()
		return max(first, m.unmade()+m.update.most())
	}
	if m.config.Slots == 0 {
		return 0
	}
	for _, p := range nn.Params(m.model) {
		peak = max(peak, 2*p.Numel()*p.DType().Size()) // by the contract of optim.Optimizer
	}
	return m.unmade() + peak
}

// need is the limit for steps of this kind: this one, and those that come when the optimizer's state is there.
func (m *Module) need(f forecast) int64 {
	return max(max(f.forward, f.loss, f.backward)+m.unmade(), f.end+m.updating())
}

// solve finds a plan. Its error is a *LimitError if there is none.
func (m *Module) solve(ctx context.Context, s *instance) (plan.Plan, forecast, error) {
	l := s.known()
	c := toSolve(s.chainFor(s.present, s.lacks), l)
	limit, outside := m.bounds.most(), s.base+s.prologue.held+m.unmade()
	p, f, ok, err := m.under(ctx, s, c, limit-outside)
	if err != nil || ok {
		return p, f, err
	}
	if s.loss == nil {
		// The guess may be too high: the plan that needs least leaves the loss all the room there is.
		least, err := plan.Solve(ctx, toSolve(s.chainFor(s.present, s.lacks), loss{}), 1, m.config.Solve)
		if err != nil {
			return p, f, fmt.Errorf("remat: %w", err)
		}
		p, err := plan.Solve(ctx, toSolve(s.chainFor(s.present, s.lacks), loss{}), max(least.Peak, 1), m.config.Solve)
		if err != nil {
			return p, f, fmt.Errorf("remat: %w", err)
		}
		if p.Feasible && least.Peak+outside <= limit {
			f, err := m.forecast(s, p.Ops, s.present, s.lacks, s.base)
			return p, f, err
		}
	}
	lack, err := m.least(ctx, s, c, outside)
	if err != nil {
		return p, f, err
	}
	return p, f, lack
}

// under finds a plan for so much room that the forecast agrees with.
func (m *Module) under(ctx context.Context, s *instance, c plan.Chain, room int64) (p plan.Plan, f forecast, ok bool, err error) {
	for range 8 {
		p, err = plan.Solve(ctx, c, max(room, 1), m.config.Solve)
		if err != nil {
			return p, f, false, fmt.Errorf("remat: %w", err)
		}
		if !p.Feasible {
			return p, f, false, nil
		}
		if f, err = m.forecast(s, p.Ops, s.present, s.lacks, s.base); err != nil {
			return p, f, false, err
		}
		beyond := m.need(f) - m.bounds.most()
		if beyond <= 0 {
			return p, f, true, nil
		}
		room -= beyond // a plan that computes the last layer again beside what the caller holds
	}
	return p, f, false, nil
}

// least is the error for a limit that is too low.
func (m *Module) least(ctx context.Context, s *instance, c plan.Chain, outside int64) (*LimitError, error) {
	p, err := plan.Solve(ctx, c, 1, m.config.Solve)
	if err == nil {
		p, err = plan.Solve(ctx, c, max(p.Peak, 1), m.config.Solve)
	}
	if err != nil {
		return nil, fmt.Errorf("remat: %w", err)
	}
	f, err := m.forecast(s, p.Ops, s.present, s.lacks, s.base)
	if err != nil {
		return nil, err
	}
	report, err := plan.Check(c, p.Ops)
	if err != nil {
		return nil, fmt.Errorf("remat: %w", err)
	}
	e := &LimitError{Inputs: s.key, Limit: m.bounds.most(), Least: m.need(f), Others: outside, LossKnown: s.loss != nil}
	op := p.Ops[report.PeakOp]
	switch {
	case f.end+m.updating() == e.Least:
		e.SetBy = "the optimizer's update"
	case f.forward+m.unmade() == e.Least && s.base+s.prologue.peak == f.forward:
		e.SetBy = "the layers in front that are not trained"
	case op.Kind == plan.LossStep || f.loss+m.unmade() == e.Least:
		e.SetBy = "the loss"
	case op.Kind == plan.Backward:
		e.Layer, e.SetBy = c.Layers[op.Layer].Name, fmt.Sprintf("the backward of layer %q", c.Layers[op.Layer].Name)
	default:
		e.Layer, e.SetBy = c.Layers[op.Layer].Name, fmt.Sprintf("the forward of layer %q", c.Layers[op.Layer].Name)
	}
	return e, nil
}
