package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"penstock.example/safetensors"
	"penstock.example/train"
)

func newCheckpointMerge() *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use:   "merge DIR --out FILE",
		Short: "Write the model of a checkpoint as one safetensors file",
		Long: `Write all parameters and buffers of a checkpoint, under their names, to one
safetensors file, whichever number of processes has saved it. nn.Load reads the file,
and so does Python's safetensors. One tensor at a time is in memory. The model's
files are checked first; if one is missing or damaged, nothing is written.

DIR is a checkpoint, or the directory of --out of penstock train, whose newest
checkpoint is meant.`,
		Example: `  penstock checkpoint merge out/fashion --out weights.safetensors`,
		Args:    filesNamed("DIR"),
		PreRunE: func(*cobra.Command, []string) error {
			if out == "" {
				return badUsage("--out is needed: the file to write, such as weights.safetensors")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := findCheckpoint(args[0])
			if err != nil {
				return err
			}
			return writeModel(cmd, out, c, func(t safetensors.Tensor) (safetensors.Tensor, error) { return t, nil })
		},
	}
	cmd.Flags().StringVar(&out, "out", "", "`FILE` to write; /dev/stdout for standard output")
	return cmd
}

// writeModel writes the model of a checkpoint, each tensor as change makes it, to what --out names.
func writeModel(cmd *cobra.Command, out string, c *train.Checkpoint, change func(safetensors.Tensor) (safetensors.Tensor, error)) error {
	if err := keepInputs(cmd.InOrStdin(), "out", out, c.Files()...); err != nil {
		return err
	}
	if err := probeOut(cmd, out); err != nil {
		return err
	}
	count, stream := 0, standardOutput(cmd, out)
	err := c.Merge(func(model []safetensors.Tensor) (err error) {
		for i := range model {
			if model[i], err = change(model[i]); err != nil {
				return err
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
}
