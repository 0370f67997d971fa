package autoremat

import (
	"context"
	"fmt"
	"time"

	"penstock.example/nn"
	"penstock.example/remat"
	"penstock.example/torch"
)

// choose gives the instance a plan that fits under the limit beside what is live now, and returns
// the forecast of the step. A plan that still fits is kept.
func (m *Module) choose(ctx context.Context, s *instance) (forecast, error) {
	m.refresh(s)
	if s.ops != nil && !s.stale {
		f, err := m.forecast(s, s.ops, s.present, s.missingBytes, s.base)
		if err != nil {
			return f, err
		}
		if need := m.leastLimit(f); need <= m.limit.inForce() {
			return f, nil
		} else if s.given {
			return f, m.shortage(s, need, s.base, "the plan that was set")
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
			Inputs: s.key, Limit: m.limit.inForce(), Source: m.limit.source, Others: s.base, Units: len(s.chain.Layers),
			Plan: s.plan, Predicted: f.peak(), LossKnown: s.loss != nil, Solving: time.Since(started),
		})
	}
	return f, nil
}

// refresh reads the live bytes of the account, and which parameters have gradients.
func (m *Module) refresh(s *instance) {
	s.base = m.limit.device.Memory().Live
	s.present, s.missingBytes = m.presences(s.chain)
}

// known returns the loss that was measured, or else an estimate.
func (s *instance) known() loss {
	if s.loss != nil {
		return *s.loss
	}
	return guess(s.chain.Layers[len(s.chain.Layers)-1].Output)
}

// forecast predicts a step that runs ops while base bytes are live and the given gradients are
// present.
func (m *Module) forecast(s *instance, ops []remat.Op, present []presence, missingBytes []int64, base int64) (forecast, error) {
	l := s.known()
	f, err := forecastOf(withLoss(s.chainFor(present, missingBytes, outputOf(ops, len(s.chain.Layers))), l), ops, l)
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

// stateToCome returns the bytes of the optimizer's state that are not allocated yet.
func (m *Module) stateToCome() int64 {
	if need, ok := m.updateNeed(); ok {
		return need.State
	}
	if m.steps > 0 {
		return 0
	}
	sum := int64(0)
	for _, p := range nn.Params(m.model) {
		sum += p.Bytes()
	}
	return sum * int64(m.config.Slots)
}

// updateToCome returns the most bytes that an update adds to those live at the end of backward, its
// new state included.
func (m *Module) updateToCome() (peak int64) {
	if need, ok := m.updateNeed(); ok {
		return need.State + need.Scratch
	}
	if m.config.Slots == 0 {
		return 0
	}
	for _, p := range nn.Params(m.model) {
		peak = max(peak, 2*p.Bytes()) // by the contract of optim.Optimizer
	}
	return m.stateToCome() + peak
}

// leastLimit returns the least limit under which this step fits, and later steps too, which find
// the optimizer's state allocated.
func (m *Module) leastLimit(f forecast) int64 {
	return max(max(f.forward, f.loss, f.backward)+m.stateToCome(), f.end+m.updateToCome())
}
