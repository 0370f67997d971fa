package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"penstock.example/train"
)

func newCheckpointInspect() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "inspect DIR",
		Short: "Say what is in a checkpoint",
		Long: `Say what a checkpoint's state.json says: step, position in the data, recipe of the
run, files, and tensors with their types, shapes and sizes; of a SHA-256 the
beginning, and with --format json all of it. Only state.json is read;
penstock checkpoint verify checks the other files.

DIR is a checkpoint, or the directory of --out, whose newest checkpoint is meant.`,
		Example: `  penstock checkpoint inspect out/fashion
  penstock checkpoint inspect out/fashion --format json | jq .recipe`,
		Args: filesNamed("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := findCheckpoint(args[0])
			if err != nil {
				return err
			}
			if format == "json" {
				err = json.NewEncoder(cmd.OutOrStdout()).Encode(c.Contents())
			} else {
				err = showCheckpoint(cmd.OutOrStdout(), c.Contents())
			}
			return err
		},
	}
	word(cmd.Flags(), &format, "format", "text", "`FORMAT` of the output: text or json", "text", "json")
	return cmd
}

// showCheckpoint prints a checkpoint's contents for reading.
func showCheckpoint(w io.Writer, c train.Contents) error {
	t := newTable(w)
	fmt.Fprintf(t, "checkpoint\t%s\n", c.Path)
	fmt.Fprintf(t, "step\t%d\n", c.Step)
	fmt.Fprintf(t, "position\tbatch %d of epoch %d is next, both counted from 0\n", c.Position.Batch, c.Position.Epoch)
	fmt.Fprintf(t, "format\tversion %d\n", c.Version)
	for _, kind := range []struct {
		name      string
		optimizer bool
	}{{"model", false}, {"optimizer", true}} {
		files, tensors, size := 0, 0, int64(0)
		for _, f := range c.Files {
			if f.Optimizer == kind.optimizer {
				files, tensors = files+1, tensors+len(f.Tensors)
				for _, t := range f.Tensors {
					size += t.Bytes
				}
			}
		}
		fmt.Fprintf(t, "%s\t%s of %s, %s\n", kind.name, counted(tensors, "tensor"), formatBytes(size), counted(files, "file"))
	}
	decoder := json.NewDecoder(bytes.NewReader(c.Recipe))
	decoder.UseNumber() // a seed has more digits than a float
	var recipe any
	if err := decoder.Decode(&recipe); err != nil {
		return fmt.Errorf("the recipe of %s: %w", c.Path, err)
	}
	fmt.Fprintln(t, "\nRECIPE\tVALUE")
	for _, line := range flattened("", recipe) {
		fmt.Fprintf(t, "%s\n", line)
	}
	fmt.Fprintln(t, "\nFILE\tBYTES\tTENSORS\tSHA256")
	for _, f := range c.Files {
		fmt.Fprintf(t, "%s\t%d\t%d\t%.16s…\n", f.Name, f.Bytes, len(f.Tensors), f.SHA256)
	}
	fmt.Fprintln(t, "\nTENSOR\tTYPE\tSHAPE\tBYTES\tFILE")
	for _, f := range c.Files {
		for _, x := range f.Tensors {
			fmt.Fprintf(t, "%s\t%s\t%v\t%d\t%s\n", x.Name, x.DType, x.Shape, x.Bytes, f.Name)
		}
	}
	return t.Flush()
}

// counted is a number of things: "1 file", "2 files", "2 micro-batches".
func counted(n int, thing string) string {
	if n != 1 && strings.HasSuffix(thing, "ch") {
		thing += "e"
	}
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}

// flattened is decoded JSON as lines of a table: the path of each value, and the value.
func flattened(path string, value any) (lines []string) {
	object, ok := value.(map[string]any)
	if !ok {
		text, err := json.Marshal(value)
		if err != nil {
			text = []byte(fmt.Sprint(value))
		}
		return []string{path + "\t" + strings.Trim(string(text), `"`)}
	}
	for _, key := range slices.Sorted(maps.Keys(object)) {
		below := key
		if path != "" {
			below = path + "." + key
		}
		lines = append(lines, flattened(below, object[key])...)
	}
	return lines
}
