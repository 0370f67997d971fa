package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock.example/internal/arg"
	"penstock.example/internal/disk"
	"penstock.example/internal/option"
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
		option.Path(cmd.Flags(), &out, "out", outUsage)
	}
	option.Word(cmd.Flags(), &format, "format", "text", "`FORMAT` to print: text or json", "text", "json")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := probe("out", out, args...); err != nil {
			return err
		}
		r, err := find(cmd, args)
		if err != nil {
			return err
		}
		if out != "" && out != stdoutPath {
			err = unwritable("out", out, writeFile(out, r.file))
		}
		switch text, ok := r.line.([]byte); {
		case err != nil:
		case out == stdoutPath:
			_, err = cmd.OutOrStdout().Write(r.file)
		case format == "text":
			err = printTable(cmd.OutOrStdout(), r.text)
		case ok:
			_, err = cmd.OutOrStdout().Write(text)
		default:
			err = json.NewEncoder(cmd.OutOrStdout()).Encode(r.line)
		}
		return err
	}
	return cmd
}

// arguments wants one argument for each name, and one or more if the last name ends in dots. A name such as
// --out is a flag that must be given.
func arguments(names ...string) cobra.PositionalArgs {
	var files, flags []string
	for _, name := range names {
		if flag, ok := strings.CutPrefix(name, "--"); ok {
			flags = append(flags, flag)
		} else {
			files = append(files, name)
		}
	}
	return func(cmd *cobra.Command, args []string) error {
		n := len(files)
		if len(args) < n {
			missing := strings.TrimSuffix(files[len(args)], "...")
			return badUsage("%s is missing for %q; see %[2]s --help", missing, cmd.CommandPath())
		}
		if n == 0 || !strings.HasSuffix(files[n-1], "...") {
			if err := noArguments(cmd, args[n:]); err != nil {
				return err
			}
		}
		return need(cmd.Flags(), flags...)
	}
}

// readParsed reads a file, a pipe or standard input and parses it. Its errors are usage errors.
func readParsed[T any](cmd *cobra.Command, path string, parse func([]byte) (T, error)) (value T, err error) {
	in := cmd.InOrStdin()
	if !isStdin(path) {
		var file *os.File
		file, err = os.Open(path)
		in = file
		defer file.Close()
	}
	var text []byte
	if err == nil {
		text, err = disk.ReadStream(in, disk.MaxJSON)
	}
	if at := (*fs.PathError)(nil); errors.As(err, &at) {
		err = at.Err
	}
	if err == nil {
		value, err = parse(text)
	}
	if err != nil {
		err = badUsage("%s: %s", inputName(path), message(disk.Short(err)))
	}
	return value, err
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

// printTable aligns the columns of a text at its tabs.
func printTable(w io.Writer, text func(w io.Writer)) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	text(t) // Flush returns its errors
	return t.Flush()
}

func row(w io.Writer, cells ...any) {
	fmt.Fprintf(w, strings.Repeat("%v\t", len(cells)-1)+"%v\n", cells...)
}

func need(s *pflag.FlagSet, flags ...string) error {
	for _, name := range flags {
		if f := s.Lookup(name); !f.Changed {
			arg, usage := pflag.UnquoteUsage(f)
			return badUsage("--%s %s is needed: %s", name, arg, usage)
		}
	}
	return nil
}

// onlyFlags refuses flags that have no effect if another one is given. The flags in names have an effect.
func onlyFlags(cmd *cobra.Command, given string, names ...string) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if !slices.Contains(append(names, "format", "out", "config"), f.Name) {
			err = badUsage("--%s %v has no effect with %s; leave it out", f.Name, f.Value, given)
		}
	})
	return err
}

func formatBytes(n int64) string { return arg.Bytes(n) }

func micros(us float64) string {
	switch {
	case us >= 1e6:
		return fmt.Sprintf("%.3f s", us/1e6)
	case us >= 1e3:
		return fmt.Sprintf("%.2f ms", us/1e3)
	}
	return fmt.Sprintf("%.3g us", us)
}

func us(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// percentOf returns a as a percentage of b, or 0 if b is 0.
func percentOf(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return 100 * a / b
}

// percent formats a, with its sign, as a percentage of b.
func percent(a, b float64) string {
	if p := percentOf(a, b); math.Abs(p) >= 0.05 {
		return fmt.Sprintf("%+.1f %%", p)
	}
	return "0.0 %"
}

// counted returns a number of things: "1 file", "2 files", "2 micro-batches".
func counted(n int, thing string) string {
	if n != 1 && (strings.HasSuffix(thing, "ch") || strings.HasSuffix(thing, "ss")) {
		thing += "e"
	}
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}

func isStdin(path string) bool { return path == "-" || path == "/dev/stdin" }

func inputName(path string) string {
	if isStdin(path) {
		return "standard input"
	}
	return path
}

const stdoutPath = "/dev/stdout"

func writeFile(path string, text []byte) error {
	return disk.Write(path, func(w io.Writer) error { _, err := w.Write(text); return err })
}

// probe checks before any work that the file of a flag can be written and is no input. It accepts
// standard output, and "" for no file.
func probe(flag, path string, inputs ...string) error {
	if path == "" || path == stdoutPath {
		return nil
	}
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
