package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"penstock.example/train"
)

func newCheckpoint() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "checkpoint",
		Short: "Look at, check and merge checkpoints",
		Long: `Look at the checkpoints that penstock train --out saves, check them, and merge the
model's files of several processes into one.

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
  penstock checkpoint verify out/fashion/step-000200
  penstock checkpoint merge out/fashion --out weights.safetensors`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newCheckpointInspect(), newCheckpointVerify(), newCheckpointMerge())
	return cmd
}

// findCheckpoint opens the checkpoint in a directory, or the newest of those in it.
func findCheckpoint(dir string) (*train.Checkpoint, error) {
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, badUsage("%s: no such directory; want a checkpoint, or the directory of --out", dir)
	case err != nil:
		return nil, err
	case !info.IsDir():
		return nil, badUsage("%s is a file; want the directory of a checkpoint, or that of --out", dir)
	}
	if _, err := os.Lstat(filepath.Join(dir, "state.json")); err == nil {
		return train.OpenCheckpoint(dir)
	}
	steps, err := train.Store{Dir: dir}.Steps()
	if err != nil {
		return nil, err
	}
	if len(steps) == 0 {
		return nil, badUsage("%s: no checkpoint there, and no state.json of one; want a checkpoint, or the directory of --out", dir)
	}
	return train.OpenCheckpoint(train.Store{Dir: dir}.Path(slices.Max(steps)))
}
