package models

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"penstock.example/internal/arg"
)

// Options configures a model. A zero is the model's default. An option that the model does not have
// must be zero. Names in brackets are from the model's paper or benchmark; Set and Settings use
// them.
type Options struct {
	Classes  int // number of outputs
	Channels int // of the input image
	// Size is the height and width of the input image. Networks that end in an average accept other
	// sizes too. For vit it is a multiple of the patch size.
	Size int
	// Width is, by model:
	//
	//	mlp, vgg              hidden units, for vgg of the classifier
	//	gpt, gpt2, vit        length of a token's vector
	//	resnet20 to resnet56  channels of the first group
	//	resnet1001            channels of the 3x3 convolutions of the first group
	//	unet                  channels of the first level [C]
	//	densenet              channels that a layer adds [growth]
	//	amoebanetd            filters [D]
	Width int
	// Depth is, by model:
	//
	//	mlp                   hidden layers
	//	gpt, gpt2, vit        blocks
	//	resnet1001            blocks of each group
	//	unet                  levels
	//	amoebanetd            normal cells, a multiple of 3 [L]
	Depth        int
	Convolutions int     // unet [B]: in each level
	Heads        int     // of attention; Width must be a multiple
	Context      int     // longest sequence
	Dropout      float64 // probability
	NoDropout    bool    // a probability of zero if the default is another
	// Aux adds auxiliary classifiers to inception_v3 and googlenet. In training their output is
	// then a tuple, the network's own logits first, for NewAuxiliaryLoss.
	Aux bool
}

// alias is a model's own name for an option.
type alias struct{ name, field string }

// number is an option of type int.
type number struct {
	field string
	most  int // allowed, so that the sizes that a model computes fit an int64
	value *int
}

func (o *Options) numbers() []number {
	return []number{{"Classes", 1 << 20, &o.Classes}, {"Channels", 1 << 16, &o.Channels},
		{"Size", 1 << 14, &o.Size}, {"Width", 1 << 16, &o.Width}, {"Depth", 1 << 12, &o.Depth},
		{"Convolutions", 1 << 10, &o.Convolutions}, {"Heads", 1 << 16, &o.Heads},
		{"Context", 1 << 20, &o.Context}}
}

// option is an option that a model has.
type option struct {
	field string // in Options
	arg.Setting
}

// options lists the model's options with pointers to their values in o, options with an alias
// first.
func (m model) options(o *Options) []option {
	list := make([]option, len(m.aliases))
	for i, n := range m.Defaults.numbers() {
		s := option{n.field, arg.Setting{Name: strings.ToLower(n.field), Default: fmt.Sprint(*n.value),
			Read: arg.Whole(o.numbers()[i].value, 1, n.most)}}
		own := slices.IndexFunc(m.aliases, func(a alias) bool { return a.field == n.field })
		if own >= 0 {
			s.Name = m.aliases[own].name
			list[own] = s
		} else if *n.value != 0 {
			list = append(list, s)
		}
	}
	if m.dropout {
		read := func(text string) error {
			err := arg.Amount(&o.Dropout, 1)(text)
			o.NoDropout = o.Dropout == 0
			return err
		}
		list = append(list, option{"Dropout", arg.Setting{Name: "dropout",
			Default: fmt.Sprint(m.Defaults.Dropout), Read: read}})
	}
	if m.aux {
		list = append(list, option{"Aux", arg.Setting{Name: "aux", Default: "0", Read: arg.Flag(&o.Aux)}})
	}
	return list
}

func (m model) settings(o *Options) (list []arg.Setting) {
	for _, p := range m.options(o) {
		list = append(list, p.Setting)
	}
	return list
}

// Setting is an option of a model and its value.
type Setting struct {
	Name  string // the model's own, such as "B" of unet, or else Field in lower case
	Field string // of Options
	Value any    // an int, for aux 0 or 1; a float64 for dropout
}

// Settings lists the values of a model's options that New would use, options with the model's own
// names first. It returns New's errors, except those for options that depend on each other.
func Settings(name string, o Options) ([]Setting, error) {
	m, err := find(name)
	if err != nil {
		return nil, err
	}
	if err := m.complete(&o); err != nil {
		return nil, err
	}
	var list []Setting
	for _, p := range m.options(&o) {
		value := reflect.ValueOf(o).FieldByName(p.field).Interface()
		if on, ok := value.(bool); ok {
			value = map[bool]int{true: 1}[on]
		}
		list = append(list, Setting{p.Name, p.field, value})
	}
	return list, nil
}

// Set changes options by assignments to the names of Settings, such as "B=6" or "B=6,C=64". Of
// several assignments to a name the last counts. On an error, which lists the model's options, o is
// unchanged.
func Set(name string, o *Options, assignments []string) error {
	m, err := find(name)
	if err != nil {
		return err
	}
	changed := *o
	if err := arg.Set(m.Name, m.settings(&changed), assignments); err != nil {
		return fmt.Errorf("models: %w", err)
	}
	*o = changed
	return nil
}

// complete checks o and replaces zeros by defaults.
func (m model) complete(o *Options) error {
	lacks := func(field string, value any) error {
		return refuse(m.Name, field, value, "want it left out; the model has %s", arg.ListSettings(m.settings(o)))
	}
	defaults := m.Defaults.numbers()
	for i, n := range o.numbers() {
		switch usual := *defaults[i].value; {
		case *n.value == 0:
			*n.value = usual
		case usual == 0:
			return lacks(n.field, *n.value)
		case *n.value < 0 || *n.value > n.most:
			return refuse(m.Name, n.field, *n.value, "want 1 to %d, or 0 for %d", n.most, usual)
		}
	}
	switch {
	case o.Aux && !m.aux:
		return lacks("Aux", o.Aux)
	case (o.Dropout != 0 || o.NoDropout) && !m.dropout:
		return lacks("Dropout", o.Dropout)
	case !(o.Dropout >= 0 && o.Dropout < 1), o.Dropout != 0 && o.NoDropout:
		return refuse(m.Name, "Dropout", o.Dropout, "want at least 0 and below 1, and 0 with NoDropout")
	case o.Dropout == 0 && !o.NoDropout:
		o.Dropout = m.Defaults.Dropout
	}
	return nil
}

func refuse(name, field string, value any, remedy string, args ...any) error {
	return &arg.ConfigError{Of: "models: " + name, Field: field, Value: value,
		Remedy: fmt.Sprintf(remedy, args...)}
}
