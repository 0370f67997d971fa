package models

import (
	"fmt"
	"strings"

	"penstock.example/internal/arg"
)

// Options configures a model. A zero is the model's default; an option that the model does not have
// must be left at zero. Brackets give the name that a model has of its own for an option, from its
// paper or benchmark; Set and Settings use it.
type Options struct {
	Classes  int // number of outputs
	Channels int // of the input image
	// Size is the height and width of the input image. Networks that end in an average take other
	// images too. It is a multiple of a vit's patches.
	Size int
	// Width is the number of mlp's hidden units, and of those in a vgg's classifier; the length of
	// a token's vector in gpt, gpt2 and vit; the channels of the first group of resnet20 to resnet56, and of the
	// 3x3 convolutions of that of resnet1001, of the first level of unet [C], and those that a
	// layer of a densenet adds [growth]; the filters of amoebanetd [D].
	Width int
	// Depth is the number of mlp's hidden layers, of the blocks of gpt, gpt2 and vit, of those of each group of
	// resnet1001, of unet's levels, and of amoebanetd's normal cells [L], a multiple of 3.
	Depth        int
	Convolutions int     // unet [B]: in each level
	Heads        int     // of attention; they must divide Width
	Context      int     // longest sequence
	Dropout      float64 // probability
	NoDropout    bool    // a probability of zero, where the default is another
	// Aux gives inception_v3 and googlenet auxiliary classifiers. In training the model then gives
	// a tuple, its own logits first, for NewAuxiliaryLoss.
	Aux bool
}

// alias is a model's own name for an option.
type alias struct{ name, field string }

// number is a whole number among the options.
type number struct {
	field string
	most  int // what is greater is a slip; the products of these fit an int64
	value *int
}

func (o *Options) numbers() []number {
	return []number{
		{"Classes", 1 << 20, &o.Classes}, {"Channels", 1 << 12, &o.Channels}, {"Size", 1 << 14, &o.Size},
		{"Width", 1 << 16, &o.Width},
		{"Depth", 1 << 12, &o.Depth}, {"Convolutions", 1 << 10, &o.Convolutions}, {"Heads", 1 << 16, &o.Heads},
		{"Context", 1 << 20, &o.Context},
	}
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
			return m.lacks(n.field, *n.value)
		case *n.value < 0 || *n.value > n.most:
			return refuse(m.Name, n.field, *n.value, "want %s from 1 to %d, or 0 for %d", m.label(n.field), n.most, *d.value)
		}
	}
	switch {
	case o.Aux && !m.aux:
		return m.lacks("Aux", o.Aux)
	case o.Dropout != 0 && !m.dropout:
		return m.lacks("Dropout", o.Dropout)
	case o.NoDropout && !m.dropout:
		return m.lacks("NoDropout", o.NoDropout)
	case o.Dropout != 0 && o.NoDropout:
		return refuse(m.Name, "Dropout", o.Dropout, "want it, or NoDropout, and not both")
	case !probable(o.Dropout):
		return refuse(m.Name, "Dropout", o.Dropout, "want at least 0 and below 1")
	case o.Dropout == 0 && !o.NoDropout:
		o.Dropout = defaults.Dropout
	}
	return nil
}

func probable(p float64) bool { return p >= 0 && p < 1 }

func (m model) lacks(field string, value any) error {
	var labels []string
	defaults := m.Defaults
	for _, d := range defaults.numbers() {
		if *d.value != 0 {
			labels = append(labels, m.label(d.field))
		}
	}
	if m.dropout {
		labels = append(labels, "Dropout")
	}
	if m.aux {
		labels = append(labels, "Aux")
	}
	return refuse(m.Name, field, value, "want it left out; the model has %s", strings.Join(labels, ", "))
}

// ConfigError is an option that is refused.
type ConfigError = arg.ConfigError

// refuse refuses an option of a model.
func refuse(name, field string, value any, remedy string, args ...any) error {
	return &ConfigError{Of: "models: " + name, Field: field, Value: value, Remedy: fmt.Sprintf(remedy, args...)}
}

// label is a field of Options, after the model's own name if it has one.
func (m model) label(field string) string {
	for _, a := range m.own {
		if a.field == field {
			return fmt.Sprintf("%s (%s)", a.name, field)
		}
	}
	return field
}
