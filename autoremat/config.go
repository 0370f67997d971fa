package autoremat

import (
	"cmp"

	"penstock/internal/arg"
	"penstock/nn"
	"penstock/optim"
	"penstock/remat/solver"
)

// Config configures a module. Its zero value is all the memory that is free when the module first runs, and no optimizer.
type Config struct {
	// Limit is for all bytes on the device. 0 is the limit that the device's account has when the module first trains or measures, or if it has none what is live plus what the machine has available
	// (MemAvailable in /proc/meminfo), less a reserve of a tenth, or of 64 MiB if that is more, for what the account does not count and for other programs.
	Limit int64

	// Optimizer is the one that will update the model. What it will keep and has not yet made is set aside, and its update is part of the prediction. It stays the caller's.
	Optimizer optim.Optimizer
	// Slots is for an optimizer that is not given: how many tensors of each trained parameter's size it will keep (optim.Slots). They are set aside until a step is over, with two of the largest
	// parameter's size for the update; the prediction ends with backward.
	Slots int

	// Loss is what follows the model. Measure runs it with the targets that it is given, or where there are none with those that the loss makes (nn.Targeted), and the prediction is good for the first batch
	// already. Without it, or if it makes none, the first batch is planned with an estimate, or if that is too much with as little as can be, and what the loss takes is learnt from it.
	Loss nn.Loss

	// Solve says how hard to look for a plan.
	Solve solver.Options
	// Warmup and Repeats are the runs of each unit while measuring, before those that are timed and timed; 0 is 1 and 5.
	Warmup, Repeats int
	// MostUnits is the most units that the model is cut into; 0 is 2000.
	MostUnits int

	// Report is told of each plan that is chosen, on the goroutine that trains.
	Report func(Report)
}

// ConfigError is a setting of a Config that New refuses.
type ConfigError = arg.ConfigError

func (c Config) check() error {
	switch {
	case c.Limit < 0:
		return &ConfigError{Of: "autoremat", Field: "Limit", Value: c.Limit, Remedy: "want a number of bytes, or 0 for what is free"}
	case c.Slots > 0 && c.Optimizer != nil:
		return &ConfigError{Of: "autoremat", Field: "Slots", Value: c.Slots, Problem: "an Optimizer tells them itself", Remedy: "want one of the two"}
	}
	return cmp.Or(arg.AtLeast("autoremat", "Slots", c.Slots, 0), arg.AtLeast("autoremat", "Warmup", c.Warmup, 0), arg.AtLeast("autoremat", "Repeats", c.Repeats, 0), arg.AtLeast("autoremat", "MostUnits", c.MostUnits, 0))
}
