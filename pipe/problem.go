package pipe

import (
	"cmp"
	"slices"

	"penstock.example/nn"
	"penstock.example/plan"
	"penstock.example/profile"
)

// problem is the planning problem of a step, as far as it is known without measuring.
func (p *Pipe) problem(microBatches int) plan.Problem {
	out := plan.Problem{MicroBatches: microBatches, Schedule: p.cfg.Schedule}
	out.Skips, out.Ties = crossings(p.stages)
	for _, name := range p.cfg.DeviceNames() {
		out.Devices = append(out.Devices, plan.ProblemDevice{Name: name})
	}
	for i, s := range p.stages {
		policy := plan.Policy(p.cfg.policies[i])
		out.Stages = append(out.Stages, plan.Stage{Device: s.worker, Layers: len(s.Layers), Policy: policy})
	}
	return out
}

// problem is the planning problem of a step with this batch, for the memory that is available now.
func (r *run) problem(chains []profile.Chain) plan.Problem {
	p := r.p
	out := p.problem(len(r.parts))
	for i, s := range p.stages {
		if p.cfg.policies[i] != Optimal {
			continue
		}
		c, room := chains[i], r.available[i]
		d := &out.Devices[s.worker]
		d.Live = room.Live
		if limit := room.Limit; limit > 0 && (d.Limit == 0 || limit < d.Limit) {
			d.Limit = limit
		}
		out.Stages[i].Costs = costs(c)
		if c.Fewer != nil {
			fewer := costs(*c.Fewer)
			out.Stages[i].Fewer, out.Larger = &fewer, r.fullMicroBatches()
		}
		memory := plan.Memory{Unplaced: room.Unplaced, Gradients: room.Gradients, State: room.State, BatchInput: i == 0}
		if i == 0 {
			memory.InputHasGradient = room.InputGradient
			for _, v := range r.inputs {
				if r.inputGrad && v.Tensor.RequiresGrad() {
					memory.InputGradient += v.Tensor.Numel() * v.Tensor.DType().Size()
				}
			}
		}
		if p.between != nil {
			memory.Reduction = s.reduction()
		}
		if r.loss == nil && r.last(i) {
			// The outputs of the whole batch, and with them while they are put together the
			// micro-batches', later their gradients.
			memory.Outputs = 2 * int64(len(r.parts)) * c.Gives
			if r.batch.Within != nil {
				memory.Outputs = c.Gives + cmp.Or(r.batch.LossBytes, 4*c.Gives)
			}
		}
		out.Stages[i].Memory = memory
	}
	return out
}

// available is the memory of a stage, as its process knows it.
type available struct {
	Live, Limit   int64 // of the device
	Unplaced      int64
	Gradients     bool   // all of them exist
	InputGradient bool   // so do those of all inputs that want one
	State         int64  // of the optimizer, still to be allocated
	Hardware      string // of the device: see hardwareOf
}

// min is the memory that two replicas both have. The zero value is unlimited. The hardware is b's.
func (a available) min(b available) available {
	if b == (available{}) {
		return a
	}
	if b.Limit > 0 && (a.Limit == 0 || b.Limit < a.Limit) {
		a.Limit = b.Limit
	}
	a.Live, a.Unplaced, a.State = max(a.Live, b.Live), max(a.Unplaced, b.Unplaced), max(a.State, b.State)
	a.Gradients, a.InputGradient, a.Hardware = a.Gradients && b.Gradients, a.InputGradient && b.InputGradient, b.Hardware
	return a
}

func (r *run) availableOf(stage int) available {
	p, s := r.p, r.p.stages[stage]
	out := available{Hardware: s.hardware}
	if p.cfg.policies[stage] != Optimal {
		return out
	}
	m := s.Device.Memory()
	out.Live, out.Limit, out.Unplaced, out.Gradients = m.Live, m.Limit, p.Unplaced(stage), s.hasGrads()
	if b := p.cfg.Budget[stage]; b > 0 && (out.Limit == 0 || b < out.Limit) {
		out.Limit = b
	}
	if o := p.cfg.Optimizer; o != nil {
		out.State = o.Need(s.Params()).State
	}
	out.InputGradient = stage == 0 && !slices.ContainsFunc(r.inputs, func(v Value) bool {
		return r.inputGrad && v.Tensor.RequiresGrad() && !v.Tensor.HasGrad()
	})
	if r.batch.FirstMicroBatch > 0 && !slices.ContainsFunc(s.trained, hasGrad) { // planned before the update began
		for _, q := range s.trained {
			out.Unplaced += q.Bytes()
		}
		out.Gradients = true
	}
	return out
}

// costs are the measured costs of a stage.
func costs(c profile.Chain) plan.StageCosts {
	return plan.StageCosts{Footprint: c.Footprint, Times: c.UnitTimes, Loss: c.Chain.Loss.Backward, Units: c.Units,
		Prologue: c.Prologue, Spread: c.Timing.Spread}
}

// fullMicroBatches is the number of micro-batches with the most rows.
func (r *run) fullMicroBatches() int {
	return countOf(r.parts, func(m rows) bool { return m.length == r.parts[0].length })
}

// crossings are the skips and ties between stages.
func crossings(stages []*Stage) (skips []plan.Skip, ties []plan.Tie) {
	for i, s := range stages {
		for _, p := range s.skips {
			for _, to := range p.to {
				later := stages[to.stage].skips
				skips = append(skips, plan.Skip{From: i, FromPlace: p.place, To: to.stage,
					ToPlace: countOf(later[:to.index], stageSkip.received), Pops: later[to.index].pops})
			}
		}
		for k, t := range s.ties {
			if t.to.stage >= 0 {
				ties = append(ties, plan.Tie{Earlier: i, Later: t.to.stage,
					EarlierPlace: countOf(s.ties[:k], func(t tie) bool { return t.to.stage >= 0 }),
					LaterPlace:   countOf(stages[t.to.stage].ties[:t.to.index], tie.received)})
			}
		}
	}
	return skips, ties
}

func countOf[T any](list []T, counts func(T) bool) (n int) {
	for _, x := range list {
		if counts(x) {
			n++
		}
	}
	return n
}

func hasGrad(p nn.NamedParam) bool { return p.Exists() && p.Tensor().HasGrad() }

func (s *Stage) hasGrads() bool {
	return !slices.ContainsFunc(s.Params(), func(p nn.NamedParam) bool { return !hasGrad(p) })
}
