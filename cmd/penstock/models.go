package main

import (
	"encoding/json"
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
		Args: func(cmd *cobra.Command, args []string) error { return noArguments(cmd, args[min(len(args), 1):]) },
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				return describeModel(cmd.OutOrStdout(), args[0], set, format)
			}
			if len(set) > 0 {
				return badUsage("--set %s: want the NAME of a model before it, one of %s",
					strings.Join(set, ","), strings.Join(models.Names(), ", "))
			}
			return listModels(cmd.OutOrStdout(), format)
		},
	}
	cmd.Flags().StringArrayVar(&set, "set", nil, "`OPTION=VALUE,...` of the model, such as B=11,C=128; may be repeated")
	word(cmd.Flags(), &format, "format", "text", "`FORMAT` of the output: text or json", "text", "json")
	return cmd
}

// modelLine is a model in the list.
type modelLine struct {
	Name       string         `json:"name"`
	Args       map[string]any `json:"args"` // every option, by the model's own names
	Layers     int            `json:"layers"`
	Parameters int64          `json:"parameters"`
	Each       []layerLine    `json:"each,omitempty"` // of a model that is described by itself
	info       models.Info
	settings   []models.Setting
}

// layerLine is a layer of a model.
type layerLine struct {
	Name       string `json:"name"`
	Parameters int64  `json:"parameters"`
}

// readModel makes a model without its weights.
func readModel(name string, o models.Options) (modelLine, *nn.Sequential, error) {
	info, err := models.Describe(name)
	if err != nil {
		return modelLine{}, nil, err
	}
	settings, err := models.Settings(name, o)
	if err != nil {
		return modelLine{}, nil, err
	}
	model, err := models.New(name, o)
	if err != nil {
		return modelLine{}, nil, err
	}
	line := modelLine{Name: name, Args: map[string]any{}, Layers: len(model.Layers()),
		Parameters: nn.Count(model), info: info, settings: settings}
	for _, s := range settings {
		line.Args[s.Name] = s.Value
	}
	return line, model, nil
}

func listModels(w io.Writer, format string) error {
	var lines []modelLine
	for _, name := range models.Names() {
		line, _, err := readModel(name, models.Options{})
		if err != nil {
			return err
		}
		lines = append(lines, line)
	}
	if format == "json" {
		return json.NewEncoder(w).Encode(lines)
	}
	t := newTable(w)
	fmt.Fprintln(t, "MODEL\tLAYERS\tPARAMETERS\tOPTIONS")
	for _, l := range lines {
		fmt.Fprintf(t, "%s\t%d\t%d\t%s\n", l.Name, l.Layers, l.Parameters, assignments(l.settings))
	}
	return t.Flush()
}

// describeModel tells of one model what the list does, and its layers. A parameter that layers
// share counts in the first.
func describeModel(w io.Writer, name string, set []string, format string) error {
	var o models.Options
	if err := models.Set(name, &o, set); err != nil {
		if _, unknown := models.Describe(name); unknown != nil {
			return badUsage("NAME %q: %s", name, arg.OneOf(name, models.Names()))
		}
		return badUsage("--set %s", message(err))
	}
	line, model, err := readModel(name, o)
	if err != nil {
		have, _ := models.Settings(name, models.Options{})
		return badUsage("--set %s: %s; by default it is %s", strings.Join(set, ","), ofModel(name, err), assignments(have))
	}
	if format == "json" {
		for _, l := range nn.Summary(model) {
			line.Each = append(line.Each, layerLine{l.Name, l.Parameters})
		}
		// a list as without NAME, so that one reader does for both
		return json.NewEncoder(w).Encode([]modelLine{line})
	}
	width, _ := terminalWidth(w)
	fmt.Fprintf(w, "%s\n%s\n\n", wrapped(name+": "+line.info.Summary, width), wrapped(assignments(line.settings), width))
	return showLayers(w, nn.Summary(model))
}

// showLayers prints the layers of a model. Bytes are those of parameters and buffers.
func showLayers(w io.Writer, layers []nn.LayerSummary) error {
	t := newTable(w)
	fmt.Fprintln(t, "LAYER\tTYPE\tPARAMETERS\tBYTES\tSHAPES")
	parameters, bytes := int64(0), int64(0)
	for _, l := range layers {
		shapes := strings.Join(l.Shapes, ", ")
		if len(l.Shapes) > 3 {
			shapes = counted(len(l.Shapes), "tensor")
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%s\n", l.Name, l.Type, l.Parameters, l.Bytes, shapes)
		parameters, bytes = parameters+l.Parameters, bytes+l.Bytes
	}
	fmt.Fprintf(t, "\t%s\t%d\t%d\t\n", counted(len(layers), "layer"), parameters, bytes)
	return t.Flush()
}

// assignments is settings as --set takes them.
func assignments(settings []models.Setting) string {
	words := make([]string, len(settings))
	for i, s := range settings {
		words[i] = fmt.Sprintf("%s=%v", s.Name, s.Value)
	}
	return strings.Join(words, ",")
}
