package main

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"penstock.example/torch"
)

// fits80 fails for each line that is wider than a terminal of 80 columns.
func fits80(t *testing.T, what, text string) {
	t.Helper()
	text = strings.ReplaceAll(text, torch.Library(), "") // a path is as long as it is
	for line := range strings.Lines(text) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > usualWidth {
			t.Errorf("%s: %d characters: %s", what, n, line)
		}
	}
}

// TestHelpFits: the help of every verb fits a terminal of 80 columns.
func TestHelpFits(t *testing.T) {
	var walk func(path []string, cmd *cobra.Command)
	walk = func(path []string, cmd *cobra.Command) {
		r := command(t, append(path[:len(path):len(path)], "--help")...)
		if r.code != exitDone || len(r.stdout) < 100 {
			t.Errorf("%v: %+v", path, r)
		}
		fits80(t, strings.Join(path, " ")+" --help", r.stdout)
		for _, sub := range cmd.Commands() {
			walk(append(path[:len(path):len(path)], sub.Name()), sub)
		}
	}
	walk(nil, newRoot(nil))
}
