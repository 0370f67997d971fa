package main

import (
	"os"
	"path/filepath"
	"testing"
)

// An epoch's last batch with fewer rows than replicas is refused before the first step, and nothing is
// written.
func TestShortLastBatch(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	run := []string{"train", "--model", "mlp", "--data", "synthetic", "--data-set", "train=50,test=10",
		"--replicas", "3", "--batch", "16", "--out", out}
	want := "--replicas 3: an epoch's last batch has 2 rows; want 2, or another batch size"
	refuses(t, with(run, "--epochs", "1"), exitUsage, want)
	if _, err := os.Stat(out); err == nil {
		t.Error("--out was made")
	}
	must(t, with(run, "--steps", "3")...)
	before := tree(t, out)
	refuses(t, with(run, "--steps", "4", "--resume"), exitUsage, want)
	if after := tree(t, out); after != before {
		t.Errorf("something changed:\n%s\n%s", before, after)
	}
}
