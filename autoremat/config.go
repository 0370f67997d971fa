package autoremat

import (
	"cmp"

	"penstock.example/internal/arg"
	"penstock.example/nn"
	"penstock.example/optim"
)

// Config configures a [Module]. The zero value limits the module to the memory that is free when it
// first runs, and assumes no optimizer.
type Config struct {
	// Limit is the most bytes that may be live on the device.
	//
	// 0 takes the limit that the device's account has when the module first trains or measures. If
	// it has none, the limit is what is live plus what is available (torch.AvailableMemory, by the
	// machine and by the process's cgroups), less a reserve. The reserve is a tenth of what is
	// available, but at least 64 MiB. It is for what the account does not count and for other programs.
	Limit int64

	// Optimizer is the one that will update the model. The bytes of its state that are not
	// allocated yet are reserved, and its update is part of the prediction. It stays the caller's.
	Optimizer optim.Optimizer
	// Slots stands in for an Optimizer that is not given: how many tensors of each trained
	// parameter's size it keeps (optim.Slots). Their bytes are reserved until the first step is
	// over, with two tensors of the largest parameter's size for the update. The prediction then
	// ends with backward.
	Slots int

	// Loss is computed from the model's output. Measure runs it on the targets it is given; without
	// targets, on those that the loss makes (nn.Targeted). The prediction is then exact from the
	// first batch on.
	//
	// Without it, or if it makes no targets, the first batch is planned with an estimate of the
	// loss. If no plan fits with the estimate, the plan of least memory is taken. The first batch
	// then measures the loss.
	Loss nn.Loss

	// Warmup is how many untimed runs of each unit come first while measuring, Repeats how many
	// timed ones follow. 0 is 1 and 5, and fewer of units that take long; see profile.Config.
	Warmup, Repeats int
	// MostUnits is the most units that the model is cut into; 0 is 2000.
	MostUnits int

	// Report is called with each plan that is chosen, on the goroutine that trains, while the
	// module is locked: it must not call the module's methods.
	Report func(Report)
}

// ConfigError is a setting of a Config that New refuses.
type ConfigError = arg.ConfigError

func (c Config) check() error {
	switch {
	case c.Limit < 0:
		return &ConfigError{Of: "autoremat", Field: "Limit", Value: c.Limit, Remedy: "want a number of bytes, or 0 for what is free"}
	case c.Slots > 0 && c.Optimizer != nil:
		return &ConfigError{Of: "autoremat", Field: "Slots", Value: c.Slots,
			Problem: "an Optimizer tells them itself", Remedy: "want one of the two"}
	}
	return cmp.Or(arg.AtLeast("autoremat", "Slots", c.Slots, 0), arg.AtLeast("autoremat", "Warmup", c.Warmup, 0),
		arg.AtLeast("autoremat", "Repeats", c.Repeats, 0), arg.AtLeast("autoremat", "MostUnits", c.MostUnits, 0))
}
