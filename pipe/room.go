package pipe

import (
	"penstock/profile"
	"penstock/torch"
)

// room is what a stage's device has for activations.
type room struct {
	base, limit int64 // limit 0 is none
	grads       bool  // all parameters have gradients
}

// rooms reads what is there between steps.
func (r *minibatch) rooms(chains []profile.Chain) (out []room, err error) {
	p := r.p
	out = make([]room, len(p.stages))
	err = p.quietly(func(*torch.Ctx) error {
		for i, s := range p.stages {
			if p.cfg.policies[i] != Optimal {
				continue
			}
			m := s.Device.Memory()
			out[i] = room{base: m.Live + p.Unplaced(i) + p.cfg.Reserve(s) + chains[i].Statistics + r.waiting(chains[i]) + r.handed(i, chains[i]) + s.tied(), limit: m.Limit, grads: s.hasGrads()}
			if b := p.cfg.Budget[i]; b > 0 && (m.Limit == 0 || b < m.Limit) {
				out[i].limit = b
			}
		}
		return nil
	})
	return out, err
}

// waiting is a bound on what skips leave waiting on the stage's device beside what it works on: of what it stashes for other stages, and of the gradients of what it pops, as much as there are micro-batches
// by which another stage can be behind.
func (r *minibatch) waiting(c profile.Chain) int64 {
	return int64(min(len(r.parts), len(r.p.stages))) * (c.SkipsOut + c.SkipsIn)
}

// handed is what a Run that is between forward and backward, for a loss of the user's own, takes on the last stage's device: the output of the whole batch, and with it while it is put together the micro-batches',
// and later its gradient.
func (r *minibatch) handed(stage int, c profile.Chain) int64 {
	if r.loss != nil || !r.last(stage) {
		return 0
	}
	return 2 * int64(len(r.parts)) * c.Gives
}

// tied is what gradients of parameters that other stages use too take beside the stage's own: one that has come from a later stage, and one that waits for an earlier.
func (s *Stage) tied() (bytes int64) {
	for _, t := range s.ties {
		for _, other := range []target{t.from, t.to} {
			if other.stage >= 0 {
				bytes += sizeOf(t.handles[0])
			}
		}
	}
	return bytes
}

// hasGrads says whether all parameters of the stage have gradients already. Where only some have, theirs are counted twice.
func (s *Stage) hasGrads() bool {
	for _, p := range s.Params() {
		if !p.Exists() || !p.Tensor().HasGrad() {
			return false
		}
	}
	return true
}
