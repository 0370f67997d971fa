package command

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// TestFlagsRefuseWhatTheyCannotRead: whatever flag of whatever verb is given something that it
// cannot be, one line names the flag, the value and what to give instead. A flag that takes any
// text has a row in anyText, with where its value is checked.
func TestFlagsRefuseWhatTheyCannotRead(t *testing.T) {
	anyText := map[string]string{
		"set": "by the model", "checkpoint": "with the number of stages", "data-dir": "a path",
		"init": "a path", "init-rename": "with --init", "init-skip": "by the weights",
		"train-only": "by the model", "data-set": "by the data set", "schedule": "a name or a path",
		"profile": "a path", "tensorboard": "a path", "out": "a path", "config": "a path",
		"machine": "a path", "plan": "a path", "group": "with the others",
		"adapter": "a path", "prompt": "any text", "tokenizer": "a path", "trace": "a path",
		"help": "cobra's",
	}
	var walk func(path []string, cmd *cobra.Command)
	walk = func(path []string, cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if anyText[f.Name] != "" {
				return
			}
			args := append(slices.Clone(path), "--"+f.Name+"=@")
			r := command(t, args...)
			line := strings.TrimSuffix(r.stderr, "\n")
			if r.code != exitUsage || r.stdout != "" || strings.Contains(line, "\n") ||
				!strings.HasPrefix(line, "penstock: --"+f.Name+` "@"`) ||
				!strings.Contains(line, "want ") || strings.Contains(line, "strconv") {
				t.Errorf("%q: exit code %d, stdout %q, stderr:\n%s", args, r.code, r.stdout, r.stderr)
			}
		})
		for _, sub := range cmd.Commands() {
			walk(append(slices.Clone(path), sub.Name()), sub)
		}
	}
	walk(nil, newRoot(nil))
}
