package pipe

import (
	"fmt"
	"slices"

	"penstock/torch"
)

// checkBudget checks what Optimal needs.
func (cfg *Config) checkBudget() error {
	if !slices.Contains(cfg.policies, Optimal) {
		if cfg.Budget != nil {
			return fmt.Errorf("pipe: a budget of %v bytes without the checkpoint policy Optimal; set it, or limit the devices (torch.Device.SetLimit)", cfg.Budget)
		}
		return nil
	}
	switch n := len(cfg.Budget); {
	case n == 0:
		cfg.Budget = make([]int64, len(cfg.Balance))
	case n == 1:
		cfg.Budget = slices.Repeat(cfg.Budget, len(cfg.Balance))
	case n != len(cfg.Balance):
		return fmt.Errorf("pipe: a budget of %d numbers of bytes for %d stages; give each stage one, or one for all", n, len(cfg.Balance))
	}
	for i, n := range cfg.Budget {
		if n < 0 {
			return fmt.Errorf("pipe: a budget of %d bytes for stage %d; want at least 1, or 0 for none", n, i)
		}
	}
	if cfg.Reserve == nil {
		cfg.Reserve = func(*Stage) int64 { return 0 }
	}
	for i, d := range cfg.Devices {
		switch {
		case d.Kind != torch.KindCPU && cfg.policies[i] == Optimal:
			return fmt.Errorf("pipe: the checkpoint policy Optimal for stage %d on %v, whose memory is not counted; want a CPU device, or another policy", i, d)
		case slices.Contains(cfg.Devices[:i], d):
			return fmt.Errorf("pipe: stages %d and %d share %v, and the checkpoint policy Optimal plans the memory of a device for one stage; give each its own", slices.Index(cfg.Devices, d), i, d)
		}
	}
	return nil
}

// limit makes budgets the limits of devices, for as long as the pipe is open. A device that has a lower limit keeps it.
func (p *Pipe) limit() {
	for i, s := range p.stages {
		if p.cfg.policies[i] != Optimal {
			continue
		}
		if b := p.cfg.Budget[i]; b > 0 {
			p.unlimit = append(p.unlimit, s.Device.Restrict(b))
		}
	}
}
