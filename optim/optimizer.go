package optim

import (
	"maps"
	"slices"

	"penstock.example/internal/arg"
	"penstock.example/nn"
	"penstock.example/torch"
)

// Optimizer is an update rule, its learning rate, and its state for each parameter.
//
// Step and Prepare may be called concurrently for different parameters; all other methods are for
// the time between steps.
type Optimizer interface {
	// Step updates params in place from their gradients, which it leaves as they are. params may be
	// a part of the model, listed as nn.Params does, and their full names tell them apart; one
	// without a gradient is skipped. State is allocated on c's device at a parameter's first update
	// and stays; temporaries are gone when Step returns, and are never more than two of the largest
	// parameter's size, mostly one.
	//
	// Everything is allocated before anything changes. If that fails (out of memory) Step panics
	// with *torch.Error. Parameters, state and counts are then unchanged and nothing stays
	// allocated, so the step can be repeated under a higher limit. Step is Prepare, Apply and Drop.
	Step(c *torch.Ctx, params []nn.NamedParam)
	// Prepare allocates what Step would and changes nothing yet. It is for updates that happen
	// everywhere or nowhere. If it fails it panics with *torch.Error and leaves nothing allocated.
	// The caller must Drop the update. Where several lists of parameters are on one device they are
	// prepared as one, whose temporaries are shared.
	Prepare(c *torch.Ctx, params []nn.NamedParam) Update
	// Need is the bytes that the next Step of params allocates if all of them have gradients. They
	// need not exist yet.
	Need(params []nn.NamedParam) Need

	// SetLR sets the rate of the steps to come. A rate that is negative or not finite panics.
	SetLR(lr float64)
	// LR is the rate in force.
	LR() float64

	// State lists the state's tensors, sorted by name: "momentum.layer1.0.conv1.weight". They stay
	// the optimizer's.
	State() []StateTensor
	// Steps counts the updates of every parameter that Step was given, 0 for those that never had a
	// gradient. The caller owns the map.
	Steps() map[string]int64
	// Load replaces the state by one that State and Steps gave, so that training goes on as if it
	// had never stopped: bit for bit, given the same rates. places says which parameters there are,
	// in all, and where their state belongs. The saved state must fit them exactly: a name unknown
	// or missing and a shape or element type that differs are errors, after which the old state is
	// still in place. No tensors and no steps are the state of an optimizer that never stepped.
	Load(tensors []SavedTensor, steps map[string]int64, places []Placement) error

	// Close frees the state. It is idempotent. Step panics afterwards.
	Close()
}

// StateTensor is one tensor of an optimizer's state.
type StateTensor struct {
	Name   string // the kind of state, a dot, and the parameter's full name
	Param  string // the parameter's full name
	Tensor *torch.Tensor
}

// SavedTensor is a tensor of an optimizer's state that was written down.
type SavedTensor struct {
	Name  string
	DType torch.DType
	Shape []int64
	// Read returns the elements, little-endian and row-major. Load calls it once, when the tensor's
	// turn comes, so that the state of a large model is never in memory twice.
	Read func() ([]byte, error)
}

// Placement is parameters and the device that their state belongs on. The parameters need not exist
// yet.
type Placement struct {
	Device torch.Device
	Params []nn.NamedParam
}

var constructors = map[string]func(Config) (Optimizer, error){"sgd": SGD, "adam": Adam, "adamw": AdamW,
	"rmsprop": RMSprop}

// Names lists what New knows, sorted.
func Names() []string { return slices.Sorted(maps.Keys(constructors)) }

// New makes an optimizer by its name. The caller must Close it.
func New(name string, o Config) (Optimizer, error) {
	construct, ok := constructors[name]
	if !ok {
		return nil, &ConfigError{Of: "optim", Field: "Optimizer", Value: name,
			Remedy: arg.OneOf(name, Names())}
	}
	return construct(o)
}
