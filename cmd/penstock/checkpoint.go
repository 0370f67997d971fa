package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"penstock.example/safetensors"
	"penstock.example/train"
)

func newCheckpoint() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "checkpoint",
		Short: "Look at checkpoints and check them",
		Long: `Look at the checkpoints that penstock train --out saves, and check them.

A checkpoint is a directory:

  step-000200/model.safetensors       parameters and buffers, by name
  step-000200/optimizer.safetensors   the optimizer's state, by name
  step-000200/state.json              step, position in the data, recipe of the
                                      run, and of each file: size, SHA-256,
                                      tensors

Of a run of several processes each writes its own layers, as
model-00002-of-00004.safetensors; state.json lists the files of all. The run can go
on at any other number of processes.

DIR is a checkpoint, or the directory of --out, whose newest checkpoint is meant.`,
		Example: `  penstock checkpoint inspect out/fashion
  penstock checkpoint verify out/fashion/step-000200`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	merge := newExport() // its former name
	merge.Use, merge.Hidden = "merge DIR --out FILE", true
	cmd.AddCommand(newCheckpointInspect(), newCheckpointVerify(), merge)
	return cmd
}

// findCheckpoint opens the checkpoint in a directory, or of those in it the newest, or the one with the
// best validation.
func findCheckpoint(dir string, best bool) (*train.Checkpoint, error) {
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, badUsage("%s: no such directory; want a checkpoint, or the directory of --out", dir)
	case err != nil:
		return nil, err
	case !info.IsDir():
		return nil, badUsage("%s is a file; want the directory of a checkpoint, or that of --out", dir)
	}
	if _, err := os.Lstat(filepath.Join(dir, "state.json")); err != nil {
		steps, err := train.Store{Dir: dir}.Steps()
		if err != nil {
			return nil, err
		}
		if len(steps) == 0 {
			return nil, badUsage("%s: no checkpoint there; want a checkpoint, or the directory of --out", dir)
		}
		dir = train.Store{Dir: dir}.Path(slices.Max(steps))
	}
	c, err := train.OpenCheckpoint(dir)
	switch {
	case err != nil || !best:
		return c, err
	case c.Best == nil:
		return nil, badUsage("--best: there was no validation up to %s; want a run of penstock train with "+
			"--validate", c.Path)
	}
	path := train.Store{Dir: filepath.Dir(c.Path)}.Path(c.Best.Step)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, badUsage("--best: %s, the best by %s, is not there", path, c.Path)
	}
	return train.OpenCheckpoint(path)
}

func newCheckpointInspect() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "inspect DIR",
		Short: "Say what is in a checkpoint",
		Long: `Say what a checkpoint's state.json says: step, position in the data, recipe of the
run, files, and tensors with their types, shapes and sizes. Only state.json is read;
penstock checkpoint verify checks the other files.

DIR is a checkpoint, or the directory of --out, whose newest checkpoint is meant.`,
		Example: `  penstock checkpoint inspect out/fashion
  penstock checkpoint inspect out/fashion --format json | jq .recipe`,
		Args: filesNamed("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := findCheckpoint(args[0], false)
			if err != nil {
				return err
			}
			contents := c.Contents()
			return printResult(cmd, format, contents, func(w io.Writer) { showCheckpoint(w, contents) })
		},
	}
	formatFlag(cmd.Flags(), &format)
	return cmd
}

func showCheckpoint(w io.Writer, c train.Contents) {
	row(w, "checkpoint", c.Path)
	row(w, "step", c.Step)
	fmt.Fprintf(w, "position\tbatch %d of epoch %d is next, both counted from 0\n", c.Position.Batch,
		c.Position.Epoch)
	fmt.Fprintf(w, "format\tversion %d\n\nrecipe: ", c.Version)
	var recipe bytes.Buffer
	json.Indent(&recipe, c.Recipe, "", "  ") // it was read from JSON
	fmt.Fprintf(w, "%s\n\n", &recipe)
	row(w, "FILE", "BYTES", "TENSORS", "SHA256")
	for _, f := range c.Files {
		row(w, f.Name, f.Bytes, len(f.Tensors), f.SHA256)
	}
	fmt.Fprintln(w)
	row(w, "TENSOR", "TYPE", "SHAPE", "BYTES", "FILE")
	for _, f := range c.Files {
		for _, x := range f.Tensors {
			row(w, x.Name, x.DType, x.Shape, x.Bytes, f.Name)
		}
	}
}

func newCheckpointVerify() *cobra.Command {
	return &cobra.Command{
		Use:   "verify DIR",
		Short: "Check every byte of a checkpoint",
		Long: `Read all files of a checkpoint and compare their hashes with those that were
written. The exit code is 1 if a file is missing or not what was written, and stderr
says which.

DIR is a checkpoint, or the directory of --out, whose newest checkpoint is meant.`,
		Example: `  penstock checkpoint verify out/fashion`,
		Args:    filesNamed("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := findCheckpoint(args[0], false)
			if err != nil {
				return err
			}
			if damage := c.Damage(); len(damage) > 0 {
				return fmt.Errorf("checkpoint %s is damaged:\n%w", c.Path, errors.Join(damage...))
			}
			total, files := int64(0), c.Contents().Files
			for _, f := range files {
				total += f.Bytes
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(),
				"%s is as it was written: step %d, %d files, %s (%d bytes)\n",
				c.Path, c.Step, len(files), formatBytes(total), total)
			return err
		},
	}
}

func newExport() *cobra.Command {
	var out, dtype string
	var best bool
	cmd := &cobra.Command{
		Use:   "export DIR --out FILE.safetensors",
		Short: "Write a trained model for others",
		Long: `Write the parameters and buffers of a run of penstock train to a safetensors file that
PyTorch's users load: {"format": "pt"}, and torchvision's names for its networks (resnet18,
vgg16, densenet121, vit_b_16, ...), Hugging Face's for gpt2. There is no tensor for the head of
gpt2, which is the embedding.

  weights = safetensors.torch.load_file("model.safetensors")
  torchvision.models.resnet18().load_state_dict(weights)

DIR is the directory of --out of penstock train, whose newest checkpoint is meant, or a
checkpoint, of any number of processes. The model's files are checked first: of one that is
damaged or missing nothing is written. --dtype rounds floating-point numbers to nearest; one that
becomes infinite is refused.`,
		Example: `  penstock export out/pets --out pets.safetensors
  penstock export out/pets --best --dtype float16 --out pets.safetensors`,
		Args: filesNamed("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := need(cmd, "out"); err != nil {
				return err
			}
			c, err := findCheckpoint(args[0], best)
			if err != nil {
				return err
			}
			if err := checkOut(cmd, out, c.Files()...); err != nil {
				return err
			}
			count, stream := 0, standardOutput(cmd, out)
			err = c.Merge(func(model []safetensors.Tensor) error {
				for i, t := range model {
					if to, ok := exportTypes[dtype]; ok && t.DType.Float() && t.DType != to {
						model[i] = safetensors.Converting(t, to)
					}
				}
				if count = len(model); stream != nil {
					return safetensors.Write(stream, model, safetensors.PyTorch)
				}
				return safetensors.WriteFile(out, model, safetensors.PyTorch)
			})
			if err == nil && stream == nil {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %d tensors of step %d\n", out, count, c.Step)
			}
			return err
		},
	}
	s := cmd.Flags()
	s.SortFlags = false
	path(s, &out, "out", "`FILE` to write, such as model.safetensors; /dev/stdout for standard output")
	names := []string{"float16", "bfloat16", "float32", "float64"}
	word(s, &dtype, "dtype", "", "`TYPE` of floating-point numbers: "+strings.Join(names, ", ")+
		" (default: as they were trained)", names...)
	bestFlag(s, &best)
	return cmd
}

// exportTypes are the types of --dtype.
var exportTypes = map[string]safetensors.DType{
	"float16": safetensors.F16, "bfloat16": safetensors.BF16, "float32": safetensors.F32,
	"float64": safetensors.F64,
}
