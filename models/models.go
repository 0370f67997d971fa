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
	also    string                                // another name that is understood
	own     []alias                               // listed first
	dropout bool                                  // has the option
	aux     bool                                  // likewise
	least   int                                   // the smallest Size; 0 is any
	build   func(Options) (*nn.Sequential, error) // of complete options
}

// imageNet is a model of 1000 classes of images of 224x224 in colour.
func imageNet(name, summary string, build func(Options) (*nn.Sequential, error)) model {
	return model{build: build, Info: Info{Name: name, Summary: summary, Kind: Image,
		Input:    []int64{3, 224, 224},
		Defaults: Options{Classes: 1000, Channels: 3, Size: 224}}}
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
	if o.Heads != 0 && o.Width%o.Heads != 0 {
		return nil, refuse(m.Name, "Width", o.Width, "want a multiple of the %d Heads", o.Heads)
	}
	if o.Size < m.least {
		return nil, refuse(m.Name, "Size", o.Size,
			"want at least %d, or nothing is left of the image on the way", m.least)
	}
	return m.build(o)
}

func find(name string) (model, error) {
	i := slices.IndexFunc(registry, func(m model) bool { return m.Name == name || m.also == name })
	if i < 0 || name == "" {
		return model{}, &ConfigError{Of: "models", Field: "Model", Value: name,
			Remedy: arg.OneOf(name, Names())}
	}
	return registry[i], nil
}
