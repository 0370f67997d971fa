// Package models makes well-known networks by name, as nn.Sequential. It holds no weights:
// parameters are declared, and allocated when the model is run. Networks that torchvision has name
// their parameters and buffers as it does, so that its weights fit.
package models

import (
	"slices"

	"penstock.example/internal/arg"
	"penstock.example/nn"
)

// Kind is the kind of a model's input and output.
type Kind string

// The kinds.
const (
	// reads float32 [N, channels, height, width], and answers with logits [N, classes]
	Image Kind = "image"
	// reads the same, and answers with logits [N, classes, height, width], for each pixel
	Segmentation Kind = "segmentation"
	// reads int64 [N, T], T <= Context, and answers with logits [N, classes, T]
	Text Kind = "text"
)

// Info describes a model.
type Info struct {
	Name    string
	Summary string // one line
	Kind    Kind
	Input   []int64 // of one sample by default: [channels, height, width], or [T]
	// Defaults are the values that zeros in Options stand for. A zero here is no option of the model,
	// except perhaps Dropout.
	Defaults Options
}

type model struct {
	Info
	also    []string // other names that are understood
	own     []alias
	dropout bool                                  // has the option
	aux     bool                                  // likewise
	least   int                                   // the smallest Size; 0 is any
	build   func(Options) (*nn.Sequential, error) // of complete options
}

// registry lists the models in the order of Names.
var registry = slices.Concat(mlps, cifarResNets, resNets, preActResNets, vggs, denseNets, inceptions,
	googleNets, amoebaNets, unets, viTs, gpts, gpt2s)

// Names lists the models, each by the one name that Describe gives.
func Names() []string {
	names := make([]string, len(registry))
	for i, m := range registry {
		names[i] = m.Name
	}
	return names
}

// Describe describes a model. The error for an unknown name lists the names.
func Describe(name string) (Info, error) {
	m, err := find(name)
	if err != nil {
		return Info{}, err
	}
	info := m.Info
	info.Input = slices.Clone(info.Input)
	return info, nil
}

// New makes a model. It returns an error if the name is unknown, or an option is not one of
// the model's or has a value it cannot have.
func New(name string, o Options) (*nn.Sequential, error) {
	m, err := find(name)
	if err != nil {
		return nil, err
	}
	if err := m.complete(&o); err != nil {
		return nil, err
	}
	if o.Size < m.least {
		return nil, refuse(m.Name, "Size", o.Size,
			"want at least %d, or nothing is left of the image on the way", m.least)
	}
	return m.build(o)
}

func find(name string) (model, error) {
	i := slices.IndexFunc(registry, func(m model) bool {
		return m.Name == name ||
			slices.Contains(m.also, name)
	})
	if i < 0 {
		return model{}, &ConfigError{Of: "models", Field: "Model", Value: name,
			Remedy: arg.OneOf(name, Names())}
	}
	return registry[i], nil
}
