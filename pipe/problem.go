package pipe

import (
	"slices"

	"penstock/nn"
	"penstock/planner"
	"penstock/profile"
)

// problem is the planning problem of a step with so many micro-batches, as far as it is known
// without measuring.
func (p *Pipe) problem(microBatches int) planner.Problem {
	out := planner.Problem{MicroBatches: microBatches, Skips: edges(p.stages), Schedule: p.cfg.Schedule}
	for _, d := range p.Devices() {
		out.Devices = append(out.Devices, planner.Device{Name: d.String()})
	}
	for i, s := range p.stages {
		out.Stages = append(out.Stages, planner.Stage{Device: s.worker, Layers: len(s.Layers),
			Policy: planner.Policy(p.cfg.policies[i])})
	}
	return out
}

// problem is the planning problem of a step with this batch, for the memory that is available now.
func (r *minibatch) problem(chains []profile.Chain) planner.Problem {
	p := r.p
	out := p.problem(len(r.parts))
	for i, s := range p.stages {
		if p.cfg.policies[i] != Optimal {
			continue
		}
		c, room := chains[i], r.room(i)
		d := &out.Devices[s.worker]
		d.Live = room.Live
		if limit := room.Limit; limit > 0 && (d.Limit == 0 || limit < d.Limit) {
			d.Limit = limit
		}
		out.Stages[i].Costs = planner.Costs{
			First: c.Chain, Later: c.Later, Units: c.Units, Prologue: c.Prologue, ProloguePeak: c.ProloguePeak,
			Given: c.Given, Gives: c.Gives, SkipsIn: c.SkipsIn, SkipsOut: c.SkipsOut,
			Statistics: c.Statistics, Spread: c.Timing.Spread,
		}
		for _, d := range c.Deferred {
			out.Stages[i].Costs.Deferred += d.Bytes
		}
		memory := planner.Memory{
			Unplaced: room.Unplaced, Tied: s.tied(), Gradients: room.Gradients, State: room.State,
			BatchInput: i == 0 && !r.inputGrad,
		}
		if r.loss == nil && r.last(i) {
			// The outputs of the whole batch, and with them while they are put together the
			// micro-batches', later their gradients.
			memory.Outputs = 2 * int64(len(r.parts)) * c.Gives
		}
		out.Stages[i].Memory = memory
	}
	return out
}

// room is what the process of a stage knows of the stage's memory.
type room struct {
	Live, Limit int64 // of the device
	Unplaced    int64
	Gradients   bool  // all of them exist
	State       int64 // of the optimizer, still to be allocated
}

// room is the room of a stage: known here, or what its process has said.
func (r *minibatch) room(stage int) room {
	p, s := r.p, r.p.stages[stage]
	if !s.Here {
		return r.rooms[stage]
	}
	m := s.Device.Memory()
	out := room{Live: m.Live, Limit: m.Limit, Unplaced: p.Unplaced(stage), Gradients: s.hasGrads()}
	if b := p.cfg.Budget[stage]; b > 0 && (out.Limit == 0 || b < out.Limit) {
		out.Limit = b
	}
	if o := p.cfg.Optimizer; o != nil {
		out.State = o.Need(s.Params()).State
	}
	return out
}

// tied is the bytes of gradients of tied parameters that a stage holds beside its own: one received
// from a later stage, and one that waits for an earlier.
func (s *Stage) tied() (bytes int64) {
	for _, t := range s.ties {
		for _, other := range []location{t.from, t.to} {
			if other.stage >= 0 {
				bytes += t.handles[0].Bytes()
			}
		}
	}
	return bytes
}

// hasGrads says whether all parameters of the stage have gradients already.
func (s *Stage) hasGrads() bool {
	return !slices.ContainsFunc(s.Params(), func(p nn.NamedParam) bool { return !p.Exists() || !p.Tensor().HasGrad() })
}
