package main

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
		{[]string{"train", "--processes", "2", "--", "train"}, `unexpected argument "train" for "penstock train"`},
		{append([]string{"--processes", "0"}, training...), "--processes 0: want at least 1"},
		// once, and not by each process
		{with(append([]string{"--processes", "2"}, training...), "--batch", "many"), `--batch "many": want a whole number`},
		{with(append([]string{"--processes", "2"}, training...), "--sed", "7"), "unknown flag: --sed; did you mean --set? see penstock train --help"},
		{with(append([]string{"--processes", "4"}, training...), "--stages", "3"), "4 processes share 3 devices"},
		{with(append([]string{"--processes", "3"}, training...), "--replicas", "2"), "--replicas 2: the group has 3 members"},
		{with(append([]string{"--processes", "2"}, training...), "--replicas", "3"), "--replicas 3: the group has 2 members"},
		{with(append([]string{"--processes", "4"}, training...), "--replicas", "2", "--batch", "1"), "--replicas 2: a --batch of 1 has fewer rows"},
		{with(append([]string{"--processes", "4"}, training...), "--replicas", "2", "--stages", "1"), "2 processes share 1 device, "},
		{with(append([]string{"--processes", "1"}, training...), "--replicas", "600", "--stages", "2", "--batch", "600"), "--replicas 600: 600 in one process, each with devices up to cpu:1, take more than the 1023"},
		{with(append([]string{"--processes", "2"}, training...), "--rank", "1"), "--rank 1: launch says which process is which"},
	} {
		t.Setenv(token, "")
		r := command(t, append([]string{"launch"}, row.args...)...)
		if r.code != exitUsage || r.stdout != "" || !strings.Contains(r.stderr, row.want) || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%q: exit code %d, stdout %q, stderr %q; want %s", row.args, r.code, r.stdout, r.stderr, row.want)
		}
	}
}

func TestLaunchShowsTheHelpOfTrain(t *testing.T) {
	if r := must(t, "launch", "--processes", "2", "--", "train", "--help"); r.stdout != must(t, "train", "--help").stdout {
		t.Errorf("got %s", r.stdout)
	}
}
