package command

import (
	"strings"
	"testing"
)

// training is a run of a second or less, as launch takes it.
var training = append([]string{"--"}, small...)

func TestLaunchRefuses(t *testing.T) {
	for _, row := range []struct {
		args []string
		want string
	}{
		{[]string{"--processes", "2"}, "want penstock launch --processes 2 -- train ..."},
		{[]string{"--processes", "2", "--", "balance"}, "launch starts penstock train"},
		{append([]string{"--processes", "0"}, training...), "--processes 0: want a whole number from 1"},
		{[]string{"--processes", "2", "--restarts", "1", "--", "train", "--stagse", "2"},
			"did you mean --stages? see penstock train --help"},
		{[]string{"--processes", "2", "--", "eval", "--prat", "all"}, "did you mean --part?"},
		{append([]string{"--processes", "7"}, training...), "7 are more than the 6 layers of mlp"},
	} {
		t.Setenv(token, "")
		r := command(t, append([]string{"launch"}, row.args...)...)
		if r.code != exitUsage || r.stdout != "" || !strings.Contains(r.stderr, row.want) ||
			strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%q: exit code %d, stdout %q, stderr %q; want %s", row.args, r.code, r.stdout,
				r.stderr, row.want)
		}
	}
}
