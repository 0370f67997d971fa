package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An epoch's last batch with fewer rows than replicas is refused before the first step, and nothing is
// written.
func TestShortLastBatch(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	run := []string{"train", "--model", "mlp", "--data", "synthetic", "--data-set", "train=50,test=10",
		"--replicas", "3", "--batch", "16", "--out", out}
	want := "--drop-last: too few rows, 2, in an epoch's last batch: there are 3 replicas; want it set, " +
		"or another batch size"
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

// A run that failed at the last batch of its epochs goes on without it.
func TestDropLast(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	run := []string{"train", "--model", "resnet20", "--data", "synthetic", "--data-set",
		"size=4,train=9,test=4", "--batch", "4", "--chunks", "2", "--out", out}
	refuses(t, with(run, "--epochs", "1"), exitUsage,
		"--drop-last: too few rows, 1, in an epoch's last batch: stage 0")
	must(t, with(run, "--steps", "2")...)
	refuses(t, with(run, "--epochs", "2", "--resume"), exitUsage, "--drop-last: too few rows, 1")
	r := must(t, with(run, "--epochs", "2", "--resume", "--drop-last", "--format", "json")...)
	if _, done := lines(t, r.stdout); done.Steps != 4 ||
		!strings.Contains(r.stderr, "--drop-last true instead of false") {
		t.Errorf("%+v, stderr: %s", done, r.stderr)
	}
}
