package main

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

// isStdin reports whether an argument names standard input.
func isStdin(path string) bool { return path == "-" || path == "/dev/stdin" }

// inputName is what errors call an input.
func inputName(path string) string {
	if isStdin(path) {
		return "standard input"
	}
	return path
}

// readInput reads a file, standard input, or what a shell has opened, as for <(command). What cannot be
// read is a usage error that names it.
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

// standardOutput is the stream that a path names, or nil. It is written to as it is, also if a
// shell has redirected it.
func standardOutput(cmd *cobra.Command, path string) io.Writer {
	if path == "/dev/stdout" {
		return cmd.OutOrStdout()
	}
	return nil
}

// writeOut writes what --out names: a file as a whole or not at all, or standard output.
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

// probe finds out before anything is computed whether the file of a flag can be written. It refuses an
// input: the file would be overwritten.
func probe(flag, path string, inputs ...string) error {
	out, err := os.Stat(path)
	for _, input := range inputs {
		in, missing := os.Stat(input)
		if err == nil && missing == nil && os.SameFile(out, in) && !isStdin(input) {
			return badUsage("--%s %s is the file that is read as %s and would be overwritten; want another "+
				"file", flag, path, input)
		}
	}
	err = disk.Probe(path)
	if errors.Is(err, fs.ErrNotExist) {
		return badUsage("--%s %s cannot be written: there is no folder %s; make it first, or choose another "+
			"path", flag, path, filepath.Dir(path))
	}
	return wrongInput(unwritable(flag, path, err))
}

// unwritable puts a flag to an error of writing to the path that it names.
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
