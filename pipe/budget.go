package pipe

import (
	"fmt"
	"slices"

	"penstock/torch"
)

// checkBudget checks what Optimal needs.
func (cfg *Config) checkBudget() error {
	refuse := func(problem, remedy string) error {
		return &ConfigError{Of: "pipe", Field: "Budget", Value: cfg.Budget, Problem: problem, Remedy: remedy}
	}
	if !slices.Contains(cfg.policies, Optimal) {
		if cfg.Budget != nil {
			return refuse("the policy "+string(Optimal)+" alone has a budget", "want Checkpoint Optimal with it, or limits of the devices (torch.Device.SetLimit)")
		}
		return nil
	}
	switch n := len(cfg.Budget); {
	case n == 0:
		cfg.Budget = make([]int64, len(cfg.Balance))
	case n == 1:
		cfg.Budget = slices.Repeat(cfg.Budget, len(cfg.Balance))
	case n != len(cfg.Balance):
		return refuse(fmt.Sprintf("%d numbers of bytes for %d stages", n, len(cfg.Balance)), "want one for each stage, or one for all")
	}
	for i, n := range cfg.Budget {
		if n < 0 {
			return refuse(fmt.Sprintf("stage %d has %d bytes", i, n), "want at least 1, or 0 for none")
		}
	}
	if cfg.Reserve == nil {
		cfg.Reserve = func(*Stage) int64 { return 0 }
	}
	refuseDevices := func(problem, remedy string) error {
		return &ConfigError{Of: "pipe", Field: "Devices", Value: cfg.Devices, Problem: problem, Remedy: remedy}
	}
	for i, d := range cfg.Devices {
		switch {
		case d.Kind != torch.KindCPU && cfg.policies[i] == Optimal:
			return refuseDevices(fmt.Sprintf("the memory of %v is not counted, and the policy optimal of stage %d plans it", d, i), "want CPU devices, or another policy")
		case slices.Contains(cfg.Devices[:i], d):
			return refuseDevices(fmt.Sprintf("stages %d and %d share %v, and the policy optimal plans the memory of a device for one stage", slices.Index(cfg.Devices, d), i, d), "want each stage on a device of its own")
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
