package pipe

import (
	"sync"

	"penstock.example/nn"
)

// modes notices that parts of the model were frozen, unfrozen or set to evaluation between two runs.
// Plans, measurements and which gradients go from stage to stage depend on that.
type modes struct {
	mu   sync.Mutex
	seen *nn.Modes
}

// notice finds out whether the model's modes have changed since the last run, and forgets what
// depends on them.
func (p *Pipe) notice() error {
	p.modes.mu.Lock()
	defer p.modes.mu.Unlock()
	if !p.modes.seen.Changed() {
		return nil
	}
	for _, s := range p.stages {
		for _, t := range s.ties {
			handle := t.handles[0]
			if replica := handle.Replica(); t.from.stage >= 0 && replica != nil {
				replica.SetGradOf(nil)
				replica.SetRequiresGrad(handle.Trainable())
			}
		}
	}
	p.plans.forget()
	p.cfg.Profile = nil
	return p.assess()
}

// forget drops all plans and measurements.
func (c *plans) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known.Lock()
	defer c.known.Unlock()
	c.chains, c.all, c.last, c.told, c.heard = nil, nil, nil, nil, nil
}
