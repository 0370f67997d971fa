package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"penstock.example/train"
)

func newCheckpointVerify() *cobra.Command {
	return &cobra.Command{
		Use:   "verify DIR",
		Short: "Check every byte of a checkpoint",
		Long: `Read all files of a checkpoint and compare their hashes with those that were
written. The exit code is 1 if a file is missing or not what was written, and stderr
says which, and which layers are in it.

DIR is a checkpoint, or the directory of --out, whose newest checkpoint is meant.`,
		Example: `  penstock checkpoint verify out/fashion`,
		Args:    filesNamed("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := findCheckpoint(args[0])
			if err != nil {
				return err
			}
			if damage := c.Damage(); len(damage) > 0 {
				what := "lacks files"
				if slices.ContainsFunc(damage, func(f *train.FileError) bool { return !f.Missing }) {
					what = "is damaged"
				}
				return damaged(what, c, damage)
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

// damaged is the error of a checkpoint with files that are not as they were written.
func damaged(what string, c *train.Checkpoint, files []*train.FileError) error {
	text, missing := fmt.Sprintf("checkpoint %s %s:", c.Path, what), false
	var lines []string
	for _, f := range files {
		lines, missing = append(lines, f.Error()), missing || f.Missing
	}
	text += "\n  * " + strings.Join(lines, "\n  * ")
	if missing {
		text += "\nA process that shares no file system with this one has its files in its own directory; copy them here"
	}
	return errors.New(text)
}
