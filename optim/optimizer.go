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
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
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

// Scaler scales the loss like torch.amp.GradScaler, because gradients in float16 underflow below 6e-8.
// The loss is multiplied by Scale, and the float32 sums of gradients are divided by it before the update.
// If a gradient is infinite or NaN, the update is skipped and Scale is halved. After Interval updates in a
// row Scale is doubled.
//
// Scales are powers of two, so scaling does not round. The zero value has PyTorch's settings: Scale 65536
// and Interval 2000. A Scaler belongs to one goroutine at a time, and has no state besides its fields.
type Scaler struct {
	Scale    float64 // the factor of the next loss
	Interval int     // updates in a row after which Scale is doubled
	Passed   int     // updates in a row so far
	Skipped  int     // total of skipped updates
}

// ErrNeverFinite is the error of a Scaler if gradients are not finite at the lowest scale.
var ErrNeverFinite = errors.New("optim: the gradients are not finite even at loss scale 1: the loss or a " +
	"layer gives infinity or NaN; lower the learning rate, or look for the layer")

// Larger scales could make the loss itself infinite.
const lowestScale, highestScale = 1, 1 << 24

// Factor returns the factor of the next loss, and sets default fields.
func (s *Scaler) Factor() float64 {
	s.Scale, s.Interval = cmp.Or(s.Scale, 1<<16), cmp.Or(s.Interval, 2000)
	return s.Scale
}

// Validate returns an error if a field is invalid.
func (s *Scaler) Validate() error {
	fraction, _ := math.Frexp(s.Scale)
	if s.Scale != 0 && (fraction != 0.5 || s.Scale < lowestScale || s.Scale > highestScale) ||
		min(s.Interval, s.Passed, s.Skipped) < 0 {
		return fmt.Errorf("optim: Scaler: %+v; want a Scale that is 0 or a power of two from 1 to 2^24, and "+
			"no negative number", *s)
	}
	return nil
}

// Done chooses the next scale after an update, or a skipped update if the gradients were not finite. It
// returns ErrNeverFinite if they were not finite at the lowest scale.
func (s *Scaler) Done(finite bool) error {
	scale := s.Factor()
	if !finite {
		s.Passed = 0
		s.Skipped++
		s.Scale = max(scale/2, lowestScale)
		if scale == lowestScale {
			return ErrNeverFinite
		}
		return nil
	}
	if s.Passed++; s.Passed >= s.Interval {
		s.Passed, s.Scale = 0, min(scale*2, highestScale)
	}
	return nil
}
