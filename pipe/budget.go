package pipe

import (
	"fmt"
	"slices"

	"penstock/torch"
)

// checkBudget checks Budget and what else the policy Optimal asks for.
func (cfg *Config) checkBudget() error {
	refuse := func(problem, remedy string) error {
		return &ConfigError{Of: "pipe", Field: "Budget", Value: cfg.Budget, Problem: problem, Remedy: remedy}
	}
	if !slices.Contains(cfg.policies, Optimal) {
		if cfg.Budget != nil {
			return refuse("the policy "+string(Optimal)+" alone has a budget",
				"want Checkpoint Optimal with it, or limits of the devices (torch.Device.SetLimit)")
		}
		return nil
	}
	switch n := len(cfg.Budget); {
	case n == 0:
		cfg.Budget = make([]int64, len(cfg.Balance))
	case n == 1:
		cfg.Budget = slices.Repeat(cfg.Budget, len(cfg.Balance))
	case n != len(cfg.Balance):
		return refuse(fmt.Sprintf("%d numbers of bytes for %d stages", n, len(cfg.Balance)),
			"want one for each stage, or one for all")
	}
	for i, n := range cfg.Budget {
		if n < 0 {
			return refuse(fmt.Sprintf("stage %d has %d bytes", i, n), "want at least 1, or 0 for none")
		}
	}
	refuseDevices := func(problem, remedy string) error {
		return &ConfigError{Of: "pipe", Field: "Devices", Value: cfg.Devices, Problem: problem, Remedy: remedy}
	}
	for i, d := range cfg.Devices {
		switch {
		case d.Kind != torch.KindCPU && cfg.policies[i] == Optimal:
			return refuseDevices(fmt.Sprintf("the memory of %v is not counted, and the policy optimal of stage %d plans "+
				"it", d, i), "want CPU devices, or another policy")
		case (cfg.policies[slices.Index(cfg.Devices, d)] == Optimal) != (cfg.policies[i] == Optimal):
			return &ConfigError{Of: "pipe", Field: "Checkpoint", Value: cfg.Checkpoint.String(),
				Problem: fmt.Sprintf("stages %d and %d share %v, whose memory is planned as one", slices.Index(cfg.Devices, d), i, d),
				Remedy:  "want optimal for all stages of a device, or for none"}
		}
	}
	return nil
}

// refusePlan is a ConfigError about Config.Plan.
func (cfg Config) refusePlan(problem, remedy string) error {
	type text string // which is not quoted
	return &ConfigError{Of: "pipe", Field: "Plan",
		Value: text(fmt.Sprintf("for %d stages and %d micro-batches", len(cfg.Plan.Stages),
			cfg.Plan.MicroBatches())), Problem: problem, Remedy: remedy}
}

// planned is the configuration with the settings of its plan.
func (cfg Config) planned() (Config, error) {
	const leaveOut = "leave Balance, Devices, Checkpoint, Budget and Schedule out"
	if err := cfg.Plan.Check(); err != nil {
		return cfg, cfg.refusePlan(err.Error(), "want one that planner.Solve or planner.Parse returned, unchanged")
	}
	if cfg.Balance != nil || cfg.Devices != nil || cfg.Checkpoint != "" || cfg.Budget != nil || cfg.Schedule != nil {
		return cfg, cfg.refusePlan("the configuration says what the plan says", leaveOut)
	}
	if n := cfg.Plan.MicroBatches(); cfg.Chunks > n {
		return cfg, &ConfigError{Of: "pipe", Field: "Chunks", Value: cfg.Chunks,
			Problem: "the plan has fewer micro-batches", Remedy: fmt.Sprintf("want at most %d", n)}
	} else if cfg.Chunks == 0 {
		cfg.Chunks = n
	}
	var policies []Checkpoint
	for i, s := range cfg.Plan.Stages {
		device := cfg.Plan.Devices[s.Device]
		d, err := torch.ParseDevice(device.Name)
		if err != nil {
			return cfg, cfg.refusePlan(fmt.Sprintf("stage %d: %v", i, err), "want a device of this machine, such as cpu:0")
		}
		cfg.Balance, cfg.Devices, policies = append(cfg.Balance, s.Layers), append(cfg.Devices, d),
			append(policies, Checkpoint(s.Policy))
		cfg.Budget = append(cfg.Budget, device.Limit)
	}
	cfg.Checkpoint = PerStage(policies...)
	if !slices.Contains(policies, Optimal) {
		cfg.Budget = nil
	}
	return cfg, nil
}

// limit makes budgets the limits of devices until the pipe is closed. A lower limit stays.
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
