// Package models makes well-known networks by name, as nn.Sequential, without weights: parameters
// are declared, and allocated when the model is run. Torchvision's networks have its names of
// parameters and buffers, so that its weights fit.
package models

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"penstock.example/internal/arg"
	"penstock.example/nn"
)

// Kind is the kind of a model's input and output.
type Kind string

// The kinds.
const (
	// float32 [N, channels, height, width] to logits [N, classes]
	Image Kind = "image"
	// float32 [N, channels, height, width] to logits [N, classes, height, width]
	Segmentation Kind = "segmentation"
	// int64 [N, T], T <= Context, to logits [N, classes, T]
	Text Kind = "text"
)

// Info describes a model.
type Info struct {
	Name    string
	Summary string // one line
	Kind    Kind
	Input   []int64 // of one sample by default: [channels, height, width], or [T]
	// Defaults are the defaults of Options. The model does not have an option that is zero here,
	// except perhaps Dropout and Aux.
	Defaults Options
	// Mean and Std normalise pictures by channel, after their pixels are scaled to 0 to 1. Nil is
	// not known.
	Mean, Std []float64
}

type model struct {
	Info
	also    string                                // another name
	aliases []alias                               // of options, which are then listed first
	dropout bool                                  // has Options.Dropout
	aux     bool                                  // has Options.Aux
	least   int                                   // the smallest Size; 0 is any
	vocab   int                                   // rows of the tokens' embedding; 0 is Classes
	build   func(Options) (*nn.Sequential, error) // of complete options
}

// imageNet is a model for 1000 classes of colour images of 224x224 pixels.
func imageNet(name, summary string, build func(Options) (*nn.Sequential, error)) model {
	return model{build: build, Info: Info{Name: name, Summary: summary, Kind: Image,
		Input:    []int64{3, 224, 224},
		Defaults: Options{Classes: 1000, Channels: 3, Size: 224}}}
}

// registry lists the models in the order of Names.
var registry = slices.Concat(mlps, cifarResNets, resNets, preActResNets, vggs, denseNets,
	[]model{inceptionModel(), googleNetModel(), amoebaNet()}, unets, viTs, gpts, gpt2s)

// Register adds a model of one's own to the models by name. build makes it and gets values for the
// options that are not zero in info.Defaults. The default Kind is Image, the default of Classes is
// 10, and the default Context is the length of Input. Register must be called before all else.
func Register(info Info, build func(Options) (*nn.Sequential, error)) error {
	info.Kind, info.Defaults.Classes = cmp.Or(info.Kind, Image), cmp.Or(info.Defaults.Classes, 10)
	d, dims := info.Defaults, map[Kind]int{Image: len(info.Input), Segmentation: 3, Text: 1}[info.Kind]
	if d.Channels+d.Size > 0 {
		dims = 3
	}
	problem := ""
	switch _, err := find(info.Name); {
	case info.Name == "" || strings.ContainsAny(info.Name, ", =\n"):
		problem = "want a name without blanks and commas"
	case err == nil:
		problem = "there is a model of that name; want another"
	case build == nil:
		problem = "want a function that makes it"
	case dims == 0 || len(info.Input) != dims:
		problem = fmt.Sprintf("its input is %v; want the shape of one sample: [channels, height, width], or "+
			"for text [length]", info.Input)
	}
	if problem != "" {
		return &arg.ConfigError{Of: "models", Field: "Model", Value: info.Name, Remedy: problem}
	}
	if info.Kind == Text {
		info.Defaults.Context = cmp.Or(d.Context, int(info.Input[0]))
	}
	registry = append(registry, model{Info: info, build: build, dropout: d.Dropout > 0})
	return nil
}

// Names lists the models by Info.Name.
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

// New makes a model by its name, or by the path of a folder in Hugging Face's layout, whose weights
// Weights finds. It returns an error for an unknown name, an option that the model does not have,
// or an invalid value.
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
	if m.vocab > 0 {
		if o.Classes > m.vocab {
			return nil, refuse(m.Name, "Classes", o.Classes, "want at most the %d tokens of the model",
				m.vocab)
		}
		if most := m.Defaults.Context; o.Context > most {
			return nil, refuse(m.Name, "Context", o.Context, "want at most the %d positions of the model",
				most)
		}
		o.Classes = m.vocab
	}
	if o.Size < m.least {
		return nil, refuse(m.Name, "Size", o.Size,
			"want at least %d, as the layers shrink the image to nothing otherwise", m.least)
	}
	return m.build(o)
}

func find(name string) (model, error) {
	if IsFolder(name) {
		return openFolder(name)
	}
	i := slices.IndexFunc(registry, func(m model) bool { return m.Name == name || m.also == name })
	if i < 0 || name == "" {
		return model{}, &arg.ConfigError{Of: "models", Field: "Model", Value: name,
			Remedy: arg.OneOf(name, Names())}
	}
	return registry[i], nil
}
