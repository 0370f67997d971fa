package autoremat

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"penstock.example/planner"
	"penstock.example/remat"
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
	held       int64       // bytes beside recomputed from the loss on
	outside    int64       // bytes that no plan changes
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
	ops         []remat.Op
	time, bound float64 // microseconds; see planner.DevicePlan
	forecast    forecast
	need        int64 // least limit under which it runs, bytes
}

// solve returns the plan for a chain under a limit, where so many bytes are live beside the chain;
// nil, and the least limit, if there is none. The module is a pipeline of one stage, and a batch is
// one micro-batch.
func (n *search) solve(c remat.Chain, live, limit int64) (best *candidate, least int64, err error) {
	stage := planner.Stage{Policy: planner.Optimal, Costs: planner.CostsOf(c)}
	stage.Costs.Units = n.s.chain.Units[n.s.chain.Prologue:]
	for _, layers := range stage.Costs.Units {
		stage.Layers += layers
	}
	p, err := planner.Solve(n.ctx, planner.Problem{
		Devices: []planner.Device{{Name: n.m.limit.device.String(), Limit: limit, Live: live}},
		Stages:  []planner.Stage{stage}, MicroBatches: 1,
	})
	var short *planner.MemoryError
	switch {
	case errors.As(err, &short):
		return nil, short.Least(), nil
	case err != nil:
		return nil, 0, fmt.Errorf("autoremat: %w", err)
	}
	device, ops := p.Devices[0], p.Stages[0].MicroBatches[0].Ops
	f, err := n.m.forecast(n.s, ops, n.s.present, n.s.missingBytes, n.s.base)
	if err != nil {
		return nil, 0, err
	}
	return &candidate{ops, device.Time, device.LowerBound, f, n.m.leastLimit(f)}, limit, nil
}

// leastMemory returns the plan that needs the fewest bytes.
func (n *search) leastMemory() (best *candidate, err error) {
	for _, c := range []remat.Chain{n.saved, n.recomputed} {
		f, least, err := n.solve(c, 0, 1)
		if err == nil && f == nil {
			f, _, err = n.solve(c, 0, least)
		}
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
		if f != nil && f.need <= limit && (best == nil || f.time < best.time) {
			best = f
		}
		return best == f
	}
	for lower, try := limit, 0; try < retries; try++ {
		f, _, err := n.solve(n.saved, n.outside, lower)
		if err != nil {
			return nil, err
		}
		if f == nil {
			break
		}
		if take(f) {
			if lower == limit {
				return best, nil // it is optimal for the whole limit
			}
			break
		}
		if lower -= max(f.need-limit, 1); lower <= 0 {
			break
		}
	}
	f, _, err := n.solve(n.recomputed, n.outside+n.held, limit)
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
		return remat.Plan{Ops: f.ops, LowerBound: f.bound}, f.forecast, nil
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
	op := f.ops[slices.Index(f.forecast.peaks, slices.Max(f.forecast.peaks))]
	switch op.Kind {
	case remat.LossStep:
		return "the loss"
	case remat.Backward:
		return fmt.Sprintf("the backward of layer %q", s.chain.Layers[op.Layer].Name)
	}
	return fmt.Sprintf("the forward of layer %q", s.chain.Layers[op.Layer].Name)
}
