package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// An epoch's last batch with fewer rows than replicas is refused before the first step, and only where
// the run comes to it.
func TestShortLastBatch(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	run := []string{"train", "--model", "mlp", "--data", "synthetic", "--data-set", "train=50,test=10", "--replicas", "3", "--batch", "16", "--out", out}
	want := "--batch 16: an epoch's last batch has 2 of the 50 samples, for --replicas 3; "
	for _, more := range [][]string{{"--epochs", "1"}, {"--steps", "4"}, {"--steps", "2", "--accumulate", "2"}, {"--steps", "9", "--autoresume"}} {
		refuses(t, with(run, more...), exitUsage, want+"want --replicas 2, or another --batch in a new run")
		if list, err := os.ReadDir(out); err == nil && len(list) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q: something is written: %v %v", more, list, err)
		}
	}
	refuses(t, with(run, "--batch", "48", "--epochs", "1"), exitUsage, "want --replicas 2, or another --batch in a new run")
	must(t, with(run, "--steps", "2")...)
	must(t, with(run, "--steps", "3", "--resume")...)
	before := tree(t, out)
	refuses(t, with(run, "--steps", "4", "--resume"), exitUsage, want+"want --replicas 2, or another --batch in a new run")
	if after := tree(t, out); after != before {
		t.Errorf("something changed:\n%s\n%s", before, after)
	}
	must(t, with(run[:len(run)-2], "--batch", "17", "--epochs", "1")...)
}
