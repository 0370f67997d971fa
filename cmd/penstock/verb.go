package main

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"penstock.example/internal/planfile"
	"penstock.example/remat"
)

// result is what a verb has found.
type result struct {
	line any               // of --format json; []byte is JSON already
	text func(w io.Writer) // of --format text, with tabs between columns
	file []byte            // of --out
}

// resultVerb adds to a command the function that finds its result, --format, and --out unless its usage is
// empty.
func resultVerb(cmd *cobra.Command, outUsage string, find finder) *cobra.Command {
	var format, out string
	cmd.Flags().SortFlags = false
	if outUsage != "" {
		path(cmd.Flags(), &out, "out", outUsage)
	}
	formatFlag(cmd.Flags(), &format)
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return find.run(cmd, args, out, format) }
	return cmd
}

// fileVerb adds to a command the function that finds its result, and --out, which it needs.
func fileVerb(cmd *cobra.Command, outUsage string, find finder) *cobra.Command {
	var out string
	path(cmd.Flags(), &out, "out", outUsage)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := need(cmd, "out"); err != nil {
			return err
		}
		return find.run(cmd, args, out, "text")
	}
	return cmd
}

// finder is a function that finds the result of a verb.
type finder func(cmd *cobra.Command, args []string) (result, error)

// run writes the result to out, if it is not empty, and prints it unless out is a stream.
func (find finder) run(cmd *cobra.Command, args []string, out, format string) error {
	if out != "" {
		if err := checkOut(cmd, out, args...); err != nil {
			return err
		}
	}
	r, err := find(cmd, args)
	if err != nil {
		return err
	}
	if out != "" {
		if err := writeOut(cmd, out, r.file); err != nil || standardOutput(cmd, out) != nil {
			return err
		}
	}
	if text, ok := r.line.([]byte); ok && format == "json" {
		_, err = cmd.OutOrStdout().Write(text)
		return err
	}
	return printResult(cmd, format, r.line, r.text)
}

// filesNamed refuses anything but one argument for each of these names.
func filesNamed(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > len(names) {
			return noArguments(cmd, args[len(names):])
		}
		return atLeast(names...)(cmd, args)
	}
}

// atLeast refuses fewer arguments than these names.
func atLeast(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < len(names) {
			return badUsage("%s is missing for %q; see %[2]s --help", names[len(args)], cmd.CommandPath())
		}
		return nil
	}
}

// readChain reads a chain from a file, or standard input for "-", after a check of needed flags.
func readChain(cmd *cobra.Command, path string, needed ...string) (remat.Chain, error) {
	if err := need(cmd, needed...); err != nil {
		return remat.Chain{}, err
	}
	return readParsed(cmd, path, planfile.ParseChain)
}

// readParsed reads and parses a file. A mistake in it is a usage error.
func readParsed[T any](cmd *cobra.Command, path string, parse func([]byte) (T, error)) (value T, err error) {
	text, err := readInput(cmd, path)
	if err != nil {
		return value, err
	}
	if value, err = parse(text); err != nil {
		err = badUsage("%s: %s", inputName(path), message(err))
	}
	return value, err
}

// checkOut refuses an --out that cannot be written or is an input, before anything is computed for it.
func checkOut(cmd *cobra.Command, out string, inputs ...string) error {
	if standardOutput(cmd, out) != nil {
		return nil
	}
	return probe("out", out, inputs...)
}

// chainTitle is the model of a chain and its batch, or its file.
func chainTitle(c remat.Chain, path string) string {
	switch {
	case c.Model != "" && c.Rows > 0:
		return fmt.Sprintf("%s, batch of %d", c.Model, c.Rows)
	case c.Model != "":
		return c.Model
	}
	return filepath.Base(inputName(path))
}
