package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// completed is what a shell is offered for the last word of a command line, and the directive.
func completed(t *testing.T, args ...string) ([]string, string) {
	t.Helper()
	r := must(t, with([]string{cobra.ShellCompNoDescRequestCmd}, args...)...)
	lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
	return lines[:len(lines)-1], lines[len(lines)-1]
}

// Values of flags that are words, models and their options are completed; numbers are not completed with
// files, and paths are.
func TestCompletion(t *testing.T) {
	const files, none, more = ":0", ":4", ":6"
	for _, row := range []struct {
		args      []string
		want      []string // among others
		directive string
	}{
		{[]string{"train", "--optimizer", ""}, []string{"adam", "adamw", "sgd"}, none},
		{[]string{"train", "--model", "resnet1"}, []string{"resnet1001", "resnet18"}, none},
		{[]string{"train", "--data", ""}, []string{"csv", "images", "synthetic"}, none},
		{[]string{"train", "--schedule", "zb"}, []string{"zb-h1", "zb-v"}, files},
		{[]string{"train", "--checkpoint", ""}, []string{"always", "except_last", "never", "optimal"}, none},
		{[]string{"train", "--model", "unet", "--set", ""}, []string{"B=", "C="}, more},
		{[]string{"train", "--batch", ""}, nil, none},
		{[]string{"train", "--out", ""}, nil, files},
		{[]string{"eval", "x", "--part", ""}, []string{"all", "test", "train", "validation"}, none},
		{[]string{"export", "x", "--dtype", ""}, []string{"bfloat16", "float16"}, none},
		{[]string{"models", "vit"}, []string{"vit_b_16"}, none},
		{[]string{"models", "unet", "--set", ""}, []string{"B=", "C="}, more},
		{[]string{"exp"}, []string{"export"}, none},
	} {
		got, directive := completed(t, row.args...)
		if directive != row.directive || row.want == nil && len(got) > 0 {
			t.Errorf("%q: %q with %s; want %q with %s", row.args, got, directive, row.want, row.directive)
		}
		for _, word := range row.want {
			if !slices.Contains(got, word) {
				t.Errorf("%q: no %q in %q", row.args, word, got)
			}
		}
	}
	// No flag that is one of some words is left out.
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			v, ok := f.Value.(*value)
			if !ok || v.words == nil {
				return
			}
			path := append(strings.Fields(cmd.CommandPath())[1:], "--"+f.Name, "")
			if f.NoOptDefVal != "" { // it may stand alone
				path = append(path[:len(path)-2], "--"+f.Name+"=")
			}
			if got, _ := completed(t, path...); !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(v.words))) {
				t.Errorf("%q: %q; want %q", path, got, v.words)
			}
		})
		for _, child := range cmd.Commands() {
			walk(child)
		}
	}
	walk(newRoot(nil))
}
