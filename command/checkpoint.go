package command

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"penstock.example/train"
)

func newCheckpoint() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "checkpoint",
		Short: "Look at checkpoints and check them",
		Long: `Look at the checkpoints of penstock train --out: directories such as step-000200, with
model.safetensors, optimizer.safetensors, and the step, recipe and hashes in state.json.`,
		Example: `  penstock checkpoint inspect out/fashion
  penstock checkpoint verify out/fashion/step-000200`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newCheckpointInspect(), newCheckpointVerify())
	return cmd
}

// findCheckpoint opens a checkpoint, or the newest one in the directory of a run. With best it opens the
// checkpoint of the run that has the lowest validation loss.
func findCheckpoint(dir string, best bool) (c *train.Checkpoint, err error) {
	switch c, err = train.OpenCheckpoint(dir); {
	case errors.As(err, new(*train.DamagedError)):
		return nil, err
	case err != nil:
		return nil, &usageError{err}
	case best && c.Best == nil:
		return nil, badUsage("--best: there was no validation up to %s; want a run with --validate", c.Path)
	case best:
		return train.OpenCheckpoint(train.Store{Dir: filepath.Dir(c.Path)}.Path(c.Best.Step))
	}
	return c, nil
}

const whichCheckpoint = "DIR is a checkpoint, or the directory of penstock train --out for its newest one."

func newCheckpointInspect() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "inspect DIR",
		Short: "Print what is in a checkpoint",
		Long: `Print the step, the position in the data, the recipe, the files, and the tensors with
their types, shapes and sizes. Only state.json is read.

` + whichCheckpoint,
		Example: `  penstock checkpoint inspect out/fashion --format json | jq .recipe`,
		Args:    filesNamed("DIR"),
	}
	return resultVerb(cmd, "", func(_ *cobra.Command, args []string) (result, error) {
		found, err := findCheckpoint(args[0], false)
		if err != nil {
			return result{}, err
		}
		c := checkpointLine{found.Path, found.Contents}
		return result{line: c, text: func(w io.Writer) {
			var recipe bytes.Buffer
			json.Indent(&recipe, c.Recipe, "", "  ") // it was read from JSON
			fmt.Fprintf(w, "checkpoint\t%s\nstep\t%d\nposition\tbatch %d of epoch %d is next, both "+
				"counted from 0\n\nrecipe: %s\n\n", c.Path, c.Step, c.Position.Batch, c.Position.Epoch,
				&recipe)
			row(w, "FILE", "BYTES", "TENSORS", "SHA256")
			files := slices.Sorted(maps.Keys(c.Files))
			for _, name := range files {
				f := c.Files[name]
				row(w, name, f.Bytes, len(f.Tensors), f.SHA256)
			}
			fmt.Fprintln(w)
			row(w, "TENSOR", "TYPE", "SHAPE", "BYTES", "FILE")
			for _, name := range files {
				tensors := c.Files[name].Tensors
				for _, tensor := range slices.Sorted(maps.Keys(tensors)) {
					x := tensors[tensor]
					row(w, tensor, x.DType, x.Shape, x.Bytes(), name)
				}
			}
		}}, nil
	})
}

// checkpointLine is the JSON of a checkpoint.
type checkpointLine struct {
	Path string `json:"path"`
	train.Contents
}

func newCheckpointVerify() *cobra.Command {
	return &cobra.Command{
		Use:   "verify DIR",
		Short: "Check every byte of a checkpoint",
		Long: `Read all files of a checkpoint and compare their hashes with state.json. If a file is
missing or damaged, the exit code is 1.

` + whichCheckpoint,
		Args: filesNamed("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := findCheckpoint(args[0], false)
			if err != nil {
				return err
			}
			if damage := c.Damage(); len(damage) > 0 {
				return fmt.Errorf("checkpoint %s is damaged:\n%w", c.Path, errors.Join(damage...))
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is as it was written: step %d, %d files\n", c.Path,
				c.Step, len(c.Files))
			return err
		},
	}
}
