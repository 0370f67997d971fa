// Package models makes well-known networks by name, as nn.Sequential. It holds no weights: parameters are declared, and allocated by whoever runs the model.
package models

import (
	"fmt"
	"slices"
	"strings"

	"penstock/nn"
)

// Kind is what a model reads.
type Kind string

// The kinds.
const (
	Image Kind = "image" // float32 [N, channels, height, width], and answers with logits [N, classes]
	Text  Kind = "text"  // int64 [N, T], T <= Context, and answers with logits [N, classes, T]
)

// Info describes a model.
type Info struct {
	Name     string
	Summary  string // one line
	Kind     Kind
	Input    []int64 // of one sample by default: [channels, height, width], or [T]
	Defaults Options // what a zero in Options stands for; what is zero here is not an option of the model
}

// Options configures a model. A zero is the model's default; an option that the model does not have must be left at zero.
type Options struct {
	Classes  int     // number of outputs
	Channels int     // of the input image
	Size     int     // height and width of the input image; networks that end in an average take any
	Width    int     // mlp: hidden units; resnet20 to resnet56: channels of the first group; gpt: length of a token's vector
	Depth    int     // mlp: hidden layers; gpt: blocks
	Heads    int     // of attention; they must divide Width
	Context  int     // longest sequence
	Dropout  float64 // probability, 0 by default
}

type model struct {
	Info
	dropout bool // has the option
	build   func(Options) (*nn.Sequential, error)
}

// registry lists the models in the order of Names.
var registry = slices.Concat(mlps, cifarResNets, resNets, gpts)

// Names lists the models.
func Names() []string {
	names := make([]string, len(registry))
	for i, m := range registry {
		names[i] = m.Name
	}
	return names
}

// Describe describes a model. It returns an error that lists the names if there is none of this name.
func Describe(name string) (Info, error) {
	m, err := find(name)
	if err != nil {
		return Info{}, err
	}
	info := m.Info
	info.Input = slices.Clone(info.Input)
	return info, nil
}

// New makes a model. It returns an error if there is none of this name, or an option is not one of the model's or has a value it cannot have.
func New(name string, o Options) (*nn.Sequential, error) {
	m, err := find(name)
	if err != nil {
		return nil, err
	}
	if err := m.complete(&o); err != nil {
		return nil, err
	}
	return m.build(o)
}

func find(name string) (model, error) {
	i := slices.IndexFunc(registry, func(m model) bool { return m.Name == name })
	if i < 0 {
		return model{}, fmt.Errorf("models: no model %q; there are %s", name, strings.Join(Names(), ", "))
	}
	return registry[i], nil
}

// numbers lists the whole numbers among the options.
func (o *Options) numbers() []number {
	return []number{
		{"Classes", &o.Classes}, {"Channels", &o.Channels}, {"Size", &o.Size}, {"Width", &o.Width},
		{"Depth", &o.Depth}, {"Heads", &o.Heads}, {"Context", &o.Context},
	}
}

type number struct {
	name  string
	value *int
}

// complete checks o and puts the defaults in place of zeros.
func (m model) complete(o *Options) error {
	defaults := m.Defaults
	for i, d := range defaults.numbers() {
		n := o.numbers()[i]
		switch {
		case *n.value == 0:
			*n.value = *d.value
		case *d.value == 0:
			return fmt.Errorf("models: %s has no option %s; it has %s", m.Name, n.name, strings.Join(m.options(), ", "))
		case *n.value < 0:
			return fmt.Errorf("models: %s: %s is %d; it must be at least 1, or 0 for %d", m.Name, n.name, *n.value, *d.value)
		}
	}
	if o.Dropout != 0 && !m.dropout {
		return fmt.Errorf("models: %s has no option Dropout; it has %s", m.Name, strings.Join(m.options(), ", "))
	}
	if !(o.Dropout >= 0 && o.Dropout < 1) {
		return fmt.Errorf("models: %s: Dropout is %v; it must be at least 0 and below 1", m.Name, o.Dropout)
	}
	return nil
}

func (m model) options() []string {
	var names []string
	defaults := m.Defaults
	for _, d := range defaults.numbers() {
		if *d.value != 0 {
			names = append(names, d.name)
		}
	}
	if m.dropout {
		names = append(names, "Dropout")
	}
	return names
}
