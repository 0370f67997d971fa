package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
)

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
			c, err := findCheckpoint(args[0])
			if err != nil {
				return err
			}
			if damage := c.Damage(); len(damage) > 0 {
				return fmt.Errorf("checkpoint %s is damaged:\n%w", c.Path, errors.Join(damage...))
			}
			contents := c.Contents()
			total := int64(0)
			for _, f := range contents.Files {
				total += f.Bytes
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is as it was written: step %d, %d files, %s (%d bytes)\n",
				c.Path, c.Step, len(contents.Files), formatBytes(total), total)
			return err
		},
	}
}
