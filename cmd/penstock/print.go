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

func formatFlag(s *pflag.FlagSet, to *string) {
	word(s, to, "format", "text", "`FORMAT` of the output: text or json", "text", "json")
}

// printResult prints a result as a line of JSON, or by text, with tabs between columns.
func printResult(cmd *cobra.Command, format string, result any, text func(w io.Writer)) error {
	if format == "json" {
		return json.NewEncoder(cmd.OutOrStdout()).Encode(result)
	}
	return printTable(cmd.OutOrStdout(), text)
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

func formatBytes(n int64) string { return arg.Bytes(n) }

// micros formats microseconds.
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

func ms(seconds float64) string { return fmt.Sprintf("%.3f", 1000*seconds) }
