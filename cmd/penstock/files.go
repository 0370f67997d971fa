package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"penstock.example/internal/disk"
)

// isStdin reports whether an argument names standard input.
func isStdin(path string) bool { return path == "-" || path == "/dev/stdin" }

// readInput reads a chain, a plan or a machine: a regular file, standard input, or a descriptor that a
// shell has opened, as for <(command). A file that cannot be read is wrong input, a usage error that
// names it.
func readInput(cmd *cobra.Command, path string) ([]byte, error) {
	text, err := openInput(cmd, path)
	var at *fs.PathError
	if errors.As(err, &at) {
		err = at.Err
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = errors.New("no such file")
	}
	if err != nil {
		return nil, badUsage("%s: %w", inputName(path), err)
	}
	return text, nil
}

// inputName is what errors call an input.
func inputName(path string) string {
	if isStdin(path) {
		return "standard input"
	}
	return path
}

func openInput(cmd *cobra.Command, path string) ([]byte, error) {
	if isStdin(path) {
		return disk.ReadStream(cmd.InOrStdin(), disk.MaxJSON)
	}
	if number, ok := strings.CutPrefix(path, "/dev/fd/"); ok {
		if n, err := strconv.ParseUint(number, 10, 31); err == nil {
			return disk.ReadStream(os.NewFile(uintptr(n), path), disk.MaxJSON)
		}
	}
	return disk.Read(path, disk.MaxJSON)
}

// standardOutput is the stream that a path names, or nil. It is written to as it is, also if a
// shell has redirected it.
func standardOutput(cmd *cobra.Command, path string) io.Writer {
	switch path {
	case "/dev/stdout":
		return cmd.OutOrStdout()
	case "/dev/stderr":
		return cmd.ErrOrStderr()
	}
	return nil
}

// writeOut writes what --out names: a file as a whole or not at all, or a stream or a device as it
// is.
func writeOut(cmd *cobra.Command, path string, text []byte) error {
	write := func(w io.Writer) error { _, err := w.Write(text); return err }
	if stream := standardOutput(cmd, path); stream != nil {
		return write(stream)
	}
	return unwritable("out", path, disk.Write(path, write))
}

// probeOut finds out before minutes are spent whether --out can be written.
func probeOut(cmd *cobra.Command, path string) error {
	if standardOutput(cmd, path) != nil {
		return nil
	}
	return probe("out", path)
}

// probe finds out whether the file of a flag can be written. A missing folder, a directory, and missing
// permissions are wrong input.
func probe(flag, path string) error {
	err := disk.Probe(path)
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

// keepInputs refuses an output that is one of the inputs, under whatever name: it would be
// overwritten. Standard output is written to and not replaced, also if a shell has redirected it to
// a file.
func keepInputs(stdin io.Reader, flag, path string, inputs ...string) error {
	out, err := os.Stat(path)
	if err != nil || !out.Mode().IsRegular() || path == "/dev/stdout" {
		return nil
	}
	for _, input := range inputs {
		in, err := statInput(stdin, input)
		if err == nil && os.SameFile(out, in) {
			return badUsage("--%s %s is the file that is read %s and would be overwritten; want another file",
				flag, path, map[bool]string{true: "on standard input", false: "as " + input}[isStdin(input)])
		}
	}
	return nil
}

func statInput(stdin io.Reader, path string) (fs.FileInfo, error) {
	if !isStdin(path) {
		return os.Stat(path)
	}
	if f, ok := stdin.(*os.File); ok {
		return f.Stat()
	}
	return nil, fs.ErrNotExist
}
