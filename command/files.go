package command

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"penstock.example/internal/disk"
)

func isStdin(path string) bool { return path == "-" || path == "/dev/stdin" }

func inputName(path string) string {
	if isStdin(path) {
		return "standard input"
	}
	return path
}

// readInput reads a file, a pipe or standard input. Its errors are usage errors that name the input.
func readInput(cmd *cobra.Command, path string) (text []byte, err error) {
	in := cmd.InOrStdin()
	if !isStdin(path) {
		var file *os.File
		if file, err = os.Open(path); err == nil {
			defer file.Close()
		}
		in = file
	}
	if err == nil {
		text, err = disk.ReadStream(in, disk.MaxJSON)
	}
	var at *fs.PathError
	if errors.As(err, &at) {
		err = at.Err
	}
	if err != nil {
		err = badUsage("%s: %w", inputName(path), err)
	}
	return text, err
}

// standardOutput returns nil unless a path names standard output.
func standardOutput(cmd *cobra.Command, path string) io.Writer {
	if path == "/dev/stdout" {
		return cmd.OutOrStdout()
	}
	return nil
}

// writeOut writes the text to the path of --out. A file is written as a whole or not at all.
func writeOut(cmd *cobra.Command, path string, text []byte) error {
	if stream := standardOutput(cmd, path); stream != nil {
		_, err := stream.Write(text)
		return err
	}
	return unwritable("out", path, writeFile(path, text))
}

func writeFile(path string, text []byte) error {
	return disk.Write(path, func(w io.Writer) error { _, err := w.Write(text); return err })
}

// probe checks before anything is computed that the file of a flag can be written and is no input.
func probe(flag, path string, inputs ...string) error {
	out, err := os.Stat(path)
	for _, input := range inputs {
		in, missing := os.Stat(input)
		if err == nil && missing == nil && os.SameFile(out, in) && !isStdin(input) {
			return badUsage("--%s %s is the input %s and would be overwritten; want another file",
				flag, path, input)
		}
	}
	err = disk.Probe(path)
	if errors.Is(err, fs.ErrNotExist) {
		return badUsage("--%s %s cannot be written: there is no folder %s; make it, or choose another path",
			flag, path, filepath.Dir(path))
	}
	return wrongInput(unwritable(flag, path, err))
}

func unwritable(flag, path string, err error) error {
	if err == nil {
		return nil
	}
	var at *fs.PathError
	if errors.As(err, &at) && at.Path == path {
		err = at.Err // without the path again
	}
	return fmt.Errorf("--%s %s cannot be written: %w", flag, path, err)
}
