package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"penstock/models"
	"penstock/nn"
)

func newModels() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "models [NAME]",
		Short: "List the models, or the layers of one",
		Long: `List the models with the number of layers that a balance divides and the number
of parameters, or the layers of one model with theirs. Models are as they are by
default; for a data set, penstock train adapts inputs and classes.`,
		Args: func(cmd *cobra.Command, args []string) error { return noArguments(cmd, args[min(len(args), 1):]) },
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(format); err != nil {
				return err
			}
			if len(args) == 0 {
				return listModels(cmd.OutOrStdout(), format)
			}
			return listLayers(cmd.OutOrStdout(), args[0], format)
		},
	}
	cmd.Flags().StringVar(&format, "format", "text", "`FORMAT` of the list: text or json")
	return cmd
}

// modelLine is a model in the list.
type modelLine struct {
	Name       string `json:"name"`
	Layers     int    `json:"layers"`
	Parameters int64  `json:"parameters"`
	summary    string
}

func listModels(w io.Writer, format string) error {
	var lines []modelLine
	for _, name := range models.Names() {
		info, err := models.Describe(name)
		if err != nil {
			return err
		}
		model, err := models.New(name, models.Options{})
		if err != nil {
			return err
		}
		lines = append(lines, modelLine{name, len(model.Layers()), nn.Count(model), info.Summary})
	}
	if format == "json" {
		return json.NewEncoder(w).Encode(lines)
	}
	t := newTable(w)
	fmt.Fprintln(t, "MODEL\tLAYERS\tPARAMETERS\t")
	for _, l := range lines {
		fmt.Fprintf(t, "%s\t%d\t%d\t%s\n", l.Name, l.Layers, l.Parameters, l.summary)
	}
	return t.Flush()
}

// layerLine is a layer in the list.
type layerLine struct {
	Name       string `json:"name"`
	Parameters int64  `json:"parameters"`
}

func listLayers(w io.Writer, name, format string) error {
	model, err := models.New(name, models.Options{})
	if err != nil {
		return &usageError{err} // it lists the names
	}
	var lines []layerLine
	for _, l := range model.Layers() {
		lines = append(lines, layerLine{l.Name, nn.Count(l.Layer)})
	}
	if format == "json" {
		return json.NewEncoder(w).Encode(lines)
	}
	t := newTable(w)
	fmt.Fprintln(t, "\tLAYER\tPARAMETERS")
	for i, l := range lines {
		fmt.Fprintf(t, "%d\t%s\t%d\n", i, l.Name, l.Parameters)
	}
	fmt.Fprintf(t, "\tall %d\t%d\n", len(lines), nn.Count(model))
	return t.Flush()
}

func newTable(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 0, 2, ' ', 0) }
