package main

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"penstock.example/internal/planfile"
	"penstock.example/remat"
)

type result struct {
	line any               // for --format json; []byte is JSON already
	text func(w io.Writer) // for --format text, with tabs between columns
	file []byte            // for --out
}

// resultVerb adds --format, and --out unless outUsage is empty, and runs find. If --out is standard
// output the result is not printed as well.
func resultVerb(cmd *cobra.Command, outUsage string,
	find func(cmd *cobra.Command, args []string) (result, error)) *cobra.Command {
	var format, out string
	cmd.Flags().SortFlags = false
	if outUsage != "" {
		path(cmd.Flags(), &out, "out", outUsage)
	}
	formatFlag(cmd.Flags(), &format)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkOut(cmd, out, args...); err != nil {
			return err
		}
		r, err := find(cmd, args)
		if err != nil {
			return err
		}
		if out != "" {
			if err = writeOut(cmd, out, r.file); err != nil || standardOutput(cmd, out) != nil {
				return err
			}
		}
		if text, ok := r.line.([]byte); ok && format == "json" {
			_, err = cmd.OutOrStdout().Write(text)
			return err
		}
		return printResult(cmd, format, r.line, r.text)
	}
	return cmd
}

// filesNamed wants one argument for each name, and one or more if the last name ends in dots.
func filesNamed(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch n := len(names); {
		case len(args) < n:
			missing := strings.TrimSuffix(names[len(args)], "...")
			return badUsage("%s is missing for %q; see %[2]s --help", missing, cmd.CommandPath())
		case strings.HasSuffix(names[n-1], "..."):
			return nil
		default:
			return noArguments(cmd, args[n:])
		}
	}
}

// readChain checks for the needed flags and reads a chain.
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

// checkOut refuses an --out that cannot be written or is an input.
func checkOut(cmd *cobra.Command, out string, inputs ...string) error {
	if out == "" || standardOutput(cmd, out) != nil {
		return nil
	}
	return probe("out", out, inputs...)
}

// chainTitle names a chain by its model and batch, or by its file.
func chainTitle(c remat.Chain, path string) string {
	switch {
	case c.Model == "":
		return filepath.Base(inputName(path))
	case c.Rows == 0:
		return c.Model
	}
	return fmt.Sprintf("%s, batch of %d", c.Model, c.Rows)
}
