package command

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
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
	const files, none = ":0", ":4"
	for _, row := range []struct {
		args      []string
		want      []string // among others
		directive string
	}{
		{[]string{"train", "--optimizer", ""}, []string{"adam", "adamw", "sgd"}, none},
		{[]string{"train", "--model", "resnet1"}, []string{"resnet1001", "resnet18"}, none},
		{[]string{"train", "--batch", ""}, nil, none},
		{[]string{"train", "--out", ""}, nil, files},
		{[]string{"export", "x", "--dtype", ""}, []string{"bfloat16", "float16"}, none},
		{[]string{"models", "vit"}, []string{"vit_b_16"}, none},
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
}
