package command

import (
	"path/filepath"
	"testing"

	"penstock.example/internal/draws"
)

// A group has a rate and a decay of its own, on any cut; what all parameters have is what a group of all of
// them has; a run that is resumed has the groups of then.
func TestParameterGroups(t *testing.T) {
	args := with(small, "--steps", "3", "--lr", "0.05", "--weight-decay", "0.01")
	plain := sha(t, args...)
	for i, row := range []struct {
		args []string
		same string // "" is none of the others
	}{
		{with(small, "--steps", "3", "--lr", "0.1", "--group", "*:scale=0.5,weight-decay=0.01"), plain},
		{with(args, "--group", "fc.*:scale=1"), plain},
		{with(args, "--group", "*.bias:weight-decay=0.01", "--group", "*:weight-decay=0.01"), plain},
		{with(args, "--group", "fc.*:scale=2"), ""},
		{with(args, "--group", "*.bias:weight-decay=0"), ""},
	} {
		got := sha(t, row.args...)
		if (got == plain) != (row.same == plain) {
			t.Errorf("%q: the weights are those without groups: %v", row.args, got == plain)
		}
		if i > 0 && !draws.Full {
			continue
		}
		if cut := sha(t, with(row.args, "--balance", "2,4")...); cut != got {
			t.Errorf("%q: two stages give other weights", row.args)
		}
	}
	out := filepath.Join(t.TempDir(), "out")
	must(t, with(args, "--group", "*.bias:weight-decay=0", "--out", out)...)
	must(t, "train", "--config", filepath.Join(out, flagsFile), "--steps", "4", "--resume")
	refuses(t, with(args, "--steps", "5", "--group", "*.bias:weight-decay=1", "--out", out, "--resume"),
		exitUsage,
		`optimizer.settings.group is ["*.bias:weight-decay=0"] there and ["*.bias:weight-decay=1"] here; `+
			`resume with the saved flags and data`)
	for text, part := range map[string]string{
		"fc.*":               `--group "fc.*": want PATTERN:scale=X,weight-decay=W`,
		":scale=1":           "want a pattern of names",
		"*:scale=-1":         "want PATTERN",
		"*:scale=0":          "want PATTERN",
		"*:momentum=1":       "want PATTERN",
		"body.*:scale=0.1":   "--group body.*: no parameter of mlp has such a name",
		"*:weight-decay=NaN": "want PATTERN",
	} {
		refuses(t, with(args, "--group", text), exitUsage, part)
	}
}
