package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock.example/internal/arg"
)

// formatFlag is --format of verbs that print a result as text or as JSON.
func formatFlag(s *pflag.FlagSet, to *string) {
	word(s, to, "format", "text", "`FORMAT` of the output: text or json", "text", "json")
}

// printResult prints a result: in one line of JSON, or as text writes it, with tabs between columns.
func printResult(cmd *cobra.Command, format string, result any, text func(w io.Writer)) error {
	if format == "json" {
		return json.NewEncoder(cmd.OutOrStdout()).Encode(result)
	}
	return printTable(cmd.OutOrStdout(), text)
}

// printTable aligns the output of text in columns, at its tabs.
func printTable(w io.Writer, text func(w io.Writer)) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	text(t) // errors are kept for Flush
	return t.Flush()
}

// row writes a row of a table.
func row(w io.Writer, cells ...any) {
	for i, cell := range cells {
		if i > 0 {
			fmt.Fprint(w, "\t")
		}
		fmt.Fprint(w, cell)
	}
	fmt.Fprintln(w)
}

// need refuses a command line that lacks one of these flags.
func need(cmd *cobra.Command, flags ...string) error {
	for _, name := range flags {
		if f := cmd.Flags().Lookup(name); !f.Changed {
			arg, usage := pflag.UnquoteUsage(f)
			return badUsage("--%s %s is needed: %s", name, arg, usage)
		}
	}
	return nil
}

// formatBytes is a size for reading.
func formatBytes(n int64) string { return arg.Bytes(n) }

// micros is microseconds for reading.
func micros(us float64) string {
	switch {
	case us >= 1e6:
		return fmt.Sprintf("%.3f s", us/1e6)
	case us >= 1e3:
		return fmt.Sprintf("%.2f ms", us/1e3)
	}
	return fmt.Sprintf("%.3g us", us)
}

// us is a duration in microseconds.
func us(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// part is a in hundredths of b.
func part(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return 100 * a / b
}

// percent is how much more a is than nothing, as a part of b.
func percent(a, b float64) string {
	if hundredths := part(a, b); math.Abs(hundredths) >= 0.05 {
		return fmt.Sprintf("%+.1f %%", hundredths)
	}
	return "0.0 %"
}

// counted is a number of things: "1 file", "2 files", "2 micro-batches".
func counted(n int, thing string) string {
	if n != 1 && (strings.HasSuffix(thing, "ch") || strings.HasSuffix(thing, "ss")) {
		thing += "e"
	}
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}

// ms is seconds in milliseconds.
func ms(seconds float64) string { return fmt.Sprintf("%.3f", 1000*seconds) }
