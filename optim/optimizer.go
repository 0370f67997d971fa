// Package optim updates parameters: SGD, Adam, AdamW and RMSprop with PyTorch 1.13's formulas,
// learning-rate schedules, and clipping of gradients by their global norm. Gradients stay the caller's.
//
// If a model is cut over several devices, each part is updated by its worker:
//
//	opt, err := optim.New("adamw", optim.Config{LR: 3e-4, WeightDecay: 0.1})
//	...
//	defer opt.Close()
//	for step := range steps {
//		opt.SetLR(schedule(step))
//		// forward and backward
//		for _, stage := range stages { // may run concurrently
//			opt.Step(stage.ctx, stage.params)
//		}
//	}
//
// The bits of the result depend neither on the cut nor on the number of threads. Updates are element by
// element, and the global norm is summed in the order of names.
package optim

import (
	"maps"
	"slices"

	"penstock.example/internal/arg"
	"penstock.example/nn"
	"penstock.example/safetensors"
	"penstock.example/torch"
)

// Optimizer is an update rule, its learning rate, and its state for each parameter.
//
// Step and Prepare may be called concurrently for different parameters. Other methods must not run
// during a step.
type Optimizer interface {
	// Step updates params in place from their gradients. params may be a part of the model, listed by
	// nn.Params; state belongs to full names. Parameters without a gradient are skipped. State is
	// allocated on c's device at a parameter's first update. Temporaries are freed when Step returns;
	// they take at most twice the size of the largest parameter.
	//
	// Step is Prepare, Apply and Drop. If memory runs out Step panics with *torch.Error, and
	// parameters, state and counts are unchanged. The step can then be repeated under a higher limit.
	Step(c *torch.Ctx, params []nn.NamedParam)
	// Prepare allocates the memory of Step and changes nothing, so that several updates can happen
	// together or not at all. If it fails it panics with *torch.Error and frees what it allocated. The
	// caller must Drop the update. Parameters on one device are prepared together, to share
	// temporaries.
	Prepare(c *torch.Ctx, params []nn.NamedParam) Update
	// Need returns the bytes that the next Step of params allocates if all have gradients. The
	// parameters need not exist yet.
	Need(params []nn.NamedParam) Need

	// SetLR sets the learning rate. It panics if the rate is negative or not finite.
	SetLR(lr float64)
	// LR returns the learning rate.
	LR() float64

	// State lists the state's tensors, sorted by name: "momentum.layer1.0.conv1.weight". The
	// optimizer owns them.
	State() []StateTensor
	// Steps returns the number of updates of every parameter given to Step, 0 if it never had a
	// gradient. The caller owns the map.
	Steps() map[string]int64
	// Load replaces the state by a saved result of State and Steps, so that training continues bit
	// for bit. Each tensor is loaded in one piece, one after another. places lists all parameters and the
	// devices of their state. Names, shapes and element types must match exactly. After an error the old
	// state is kept. Without tensors and steps the state is reset.
	Load(tensors []safetensors.Tensor, steps map[string]int64, places []Placement) error

	// Close frees the state. It is idempotent. Step panics afterwards.
	Close()
}

// StateTensor is a tensor of an optimizer's state.
type StateTensor struct {
	Name   string // the slot, a dot, and Param
	Param  string // the parameter's full name
	Tensor *torch.Tensor
}

// Placement is parameters and the device of their state. The parameters need not exist yet.
type Placement struct {
	Device torch.Device
	Params []nn.NamedParam
}

var constructors = map[string]func(Config) (Optimizer, error){"sgd": SGD, "adam": Adam, "adamw": AdamW,
	"rmsprop": RMSprop}

// Names lists the names of optimizers, sorted.
func Names() []string { return slices.Sorted(maps.Keys(constructors)) }

// New returns the named optimizer. The caller must Close it.
func New(name string, o Config) (Optimizer, error) {
	construct, ok := constructors[name]
	if !ok {
		return nil, &ConfigError{Of: "optim", Field: "Optimizer", Value: name,
			Remedy: arg.OneOf(name, Names())}
	}
	return construct(o)
}
