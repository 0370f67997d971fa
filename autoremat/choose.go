package autoremat

import (
	"context"
	"fmt"
	"time"

	"penstock/nn"
	"penstock/remat"
	"penstock/torch"
)

// choose makes sure that an instance has a plan under the limit, given what is live now, and says what the step will take.
func (m *Module) choose(ctx context.Context, s *instance) (forecast, error) {
	m.look(s)
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
	torch.TrimProcess() // measuring and solving took memory that training does not need
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

// look notes what is live now, and which gradients are there.
func (m *Module) look(s *instance) {
	s.base = m.bounds.device.Memory().Live
	s.present, s.lacks = m.presences(s.chain)
}

// known is the loss, or a guess.
func (s *instance) known() loss {
	if s.loss != nil {
		return *s.loss
	}
	return guess(s.chain.Layers[len(s.chain.Layers)-1].Output)
}

// forecast is that of operations beside what is live.
func (m *Module) forecast(s *instance, ops []remat.Op, present []presence, lacks []int64, base int64) (forecast, error) {
	l := s.known()
	f, err := forecastOf(withLoss(s.chainFor(present, lacks, outputOf(ops, len(s.chain.Layers))), l), ops, l)
	if err != nil {
		return f, fmt.Errorf("autoremat: %w", err)
	}
	from := base + s.prologue.held
	f.forward, f.loss, f.backward, f.end = max(base+s.prologue.peak, from+f.forward), from+f.loss, from+f.backward, from+f.end
	if need, ok := m.updateNeed(); ok {
		f.update = f.end + need.State + need.Scratch
	}
	return f, nil
}

// unmade is the bytes of the optimizer's state that are still to be made.
func (m *Module) unmade() int64 {
	if need, ok := m.updateNeed(); ok {
		return need.State
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
	if need, ok := m.updateNeed(); ok {
		return need.State + need.Scratch
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
