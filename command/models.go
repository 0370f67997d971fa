package command

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"penstock.example/internal/arg"
	"penstock.example/internal/option"
	"penstock.example/models"
	"penstock.example/nn"
)

func newModels() *cobra.Command {
	var set []string
	cmd := &cobra.Command{
		Use:   "models [NAME [--set NAME=VALUE,...]]",
		Short: "List the models, or the layers of one",
		Long: `List the models with their numbers of layers and parameters and their options, or
describe one model and its layers. penstock train fits inputs and classes to the data set.
A model may be larger than the memory.`,
		Example: `  penstock models
  penstock models unet --set B=11,C=128
  penstock models amoebanetd --set L=72,D=512 --format json`,
		Args: func(cmd *cobra.Command, args []string) error {
			return noArguments(cmd, args[min(len(args), 1):])
		},
		ValidArgsFunction: cobra.FixedCompletions(models.Names(), cobra.ShellCompDirectiveNoFileComp),
	}
	option.Texts(cmd.Flags(), &set, "set", "`NAME=VALUE,...` options of the model; may be repeated")
	return resultVerb(cmd, "", func(_ *cobra.Command, args []string) (result, error) {
		if len(args) == 1 {
			return describeModel(args[0], set)
		}
		if set != nil {
			return result{}, badUsage("--set %s: want the NAME of a model before it", strings.Join(set, ","))
		}
		var lines []modelLine
		for _, name := range models.Names() {
			_, line, err := readModel(name, nil)
			if err != nil {
				return result{}, err
			}
			lines = append(lines, line)
		}
		return result{line: lines, text: func(w io.Writer) {
			row(w, "MODEL", "LAYERS", "PARAMETERS", "OPTIONS")
			for _, l := range lines {
				row(w, l.Name, l.Layers, l.Parameters, l.options)
			}
		}}, nil
	})
}

type modelLine struct {
	Name       string         `json:"name"`
	Args       map[string]any `json:"args"` // all options
	Layers     int            `json:"layers"`
	Parameters int64          `json:"parameters"`
	Each       []layerLine    `json:"each,omitempty"` // with NAME
	options    string         // as --set takes them
}

type layerLine struct {
	Name       string `json:"name"`
	Parameters int64  `json:"parameters"`
}

func readModel(name string, set []string) (model *nn.Sequential, line modelLine, err error) {
	var o models.Options
	if err := models.Set(name, &o, set); err != nil {
		return nil, line, badUsage("--set %s", message(err))
	}
	if model, err = models.New(name, o); err != nil {
		return nil, line, badUsage("--set %s: %s", strings.Join(set, ","), message(err))
	}
	settings, err := models.Settings(name, o)
	line = modelLine{Name: name, Args: map[string]any{}, Layers: len(model.Layers()),
		Parameters: nn.Count(model)}
	var words []string
	for _, s := range settings {
		line.Args[s.Name] = s.Value
		words = append(words, fmt.Sprintf("%s=%v", s.Name, s.Value))
	}
	line.options = strings.Join(words, ",")
	return model, line, err
}

// describeModel lists the layers of a model. A parameter that layers share counts in the first of them.
func describeModel(name string, set []string) (r result, err error) {
	info, err := models.Describe(name)
	if err != nil {
		if models.IsFolder(name) {
			return r, badUsage("%s", message(err))
		}
		return r, badUsage("NAME %q: %s", name, arg.OneOf(name, models.Names()))
	}
	model, line, err := readModel(name, set)
	if err != nil {
		return r, err
	}
	layers := nn.Summary(model)
	for _, l := range layers {
		line.Each = append(line.Each, layerLine{l.Name, l.Parameters})
	}
	return result{line: []modelLine{line}, text: func(w io.Writer) { // a list, as without NAME
		fmt.Fprintf(w, "%s: %s\n%s\n\n", name, info.Summary, line.options)
		row(w, "LAYER", "TYPE", "PARAMETERS", "BYTES", "SHAPES")
		bytes := int64(0)
		for _, l := range layers {
			shapes := l.Shapes[:min(len(l.Shapes), 3)]
			row(w, l.Name, l.Type, l.Parameters, l.Bytes, strings.Join(shapes, ", "))
			bytes += l.Bytes
		}
		row(w, "", counted(len(layers), "layer"), line.Parameters, bytes)
	}}, nil
}
