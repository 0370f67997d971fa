package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"penstock.example/internal/arg"
	"penstock.example/models"
	"penstock.example/nn"
)

func newModels() *cobra.Command {
	var format string
	var set []string
	cmd := &cobra.Command{
		Use:   "models [NAME [--set OPTION=VALUE,...]]",
		Short: "List the models, or describe one",
		Long: `List the models with the number of layers that a balance divides, the number of
parameters and the options, or describe one with its layers and theirs. Options
are as they are by default, but for --set. Nothing is allocated: a model may be
larger than the machine. For a data set, penstock train adapts inputs and classes.`,
		Example: `  penstock models
  penstock models unet --set B=11,C=128
  penstock models amoebanetd --set L=72,D=512 --format json`,
		Args: func(cmd *cobra.Command, args []string) error {
			return noArguments(cmd, args[min(len(args), 1):])
		},
		ValidArgsFunction: cobra.FixedCompletions(models.Names(), cobra.ShellCompDirectiveNoFileComp),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				return describeModel(cmd, args[0], set, format)
			}
			if len(set) > 0 {
				return badUsage("--set %s: want the NAME of a model before it", strings.Join(set, ","))
			}
			return listModels(cmd, format)
		},
	}
	cmd.Flags().StringArrayVar(&set, "set", nil,
		"`OPTION=VALUE,...` of the model, such as B=11,C=128; may be repeated")
	formatFlag(cmd.Flags(), &format)
	return cmd
}

// modelLine is the JSON of a model.
type modelLine struct {
	Name       string         `json:"name"`
	Args       map[string]any `json:"args"` // every option, by the model's own names
	Layers     int            `json:"layers"`
	Parameters int64          `json:"parameters"`
	Each       []layerLine    `json:"each,omitempty"` // of a model that is described by itself
	options    string
}

// layerLine is a layer of a model.
type layerLine struct {
	Name       string `json:"name"`
	Parameters int64  `json:"parameters"`
}

// readModel makes a model without its weights.
func readModel(name string, o models.Options) (line modelLine, model *nn.Sequential, err error) {
	if model, err = models.New(name, o); err != nil {
		return line, nil, err
	}
	settings, err := models.Settings(name, o)
	line = modelLine{Name: name, Args: map[string]any{}, Layers: len(model.Layers()),
		Parameters: nn.Count(model), options: assignments(settings)}
	for _, s := range settings {
		line.Args[s.Name] = s.Value
	}
	return line, model, err
}

func listModels(cmd *cobra.Command, format string) error {
	var lines []modelLine
	for _, name := range models.Names() {
		line, _, err := readModel(name, models.Options{})
		if err != nil {
			return err
		}
		lines = append(lines, line)
	}
	return printResult(cmd, format, lines, func(w io.Writer) {
		row(w, "MODEL", "LAYERS", "PARAMETERS", "OPTIONS")
		for _, l := range lines {
			row(w, l.Name, l.Layers, l.Parameters, l.options)
		}
	})
}

// describeModel prints one model like the list, and its layers. A parameter that layers
// share counts in the first.
func describeModel(cmd *cobra.Command, name string, set []string, format string) error {
	info, err := models.Describe(name)
	if err != nil {
		return badUsage("NAME %q: %s", name, arg.OneOf(name, models.Names()))
	}
	var o models.Options
	if err := models.Set(name, &o, set); err != nil {
		return badUsage("--set %s", message(err))
	}
	line, model, err := readModel(name, o)
	if err != nil {
		return badUsage("--set %s: %s", strings.Join(set, ","), message(err))
	}
	layers := nn.Summary(model)
	for _, l := range layers {
		line.Each = append(line.Each, layerLine{l.Name, l.Parameters})
	}
	// a list as without NAME, so that one reader does for both
	return printResult(cmd, format, []modelLine{line}, func(w io.Writer) {
		fmt.Fprintf(w, "%s: %s\n%s\n\n", name, info.Summary, line.options)
		row(w, "LAYER", "TYPE", "PARAMETERS", "BYTES", "SHAPES")
		bytes := int64(0)
		for _, l := range layers {
			row(w, l.Name, l.Type, l.Parameters, l.Bytes, strings.Join(l.Shapes[:min(len(l.Shapes), 3)],
				", "))
			bytes += l.Bytes
		}
		row(w, "", counted(len(layers), "layer"), line.Parameters, bytes)
	})
}

// assignments is settings as --set takes them.
func assignments(settings []models.Setting) string {
	words := make([]string, len(settings))
	for i, s := range settings {
		words[i] = fmt.Sprintf("%s=%v", s.Name, s.Value)
	}
	return strings.Join(words, ",")
}
