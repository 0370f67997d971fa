package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What another machine has is to be copied from there. No verb calls the half that is here damaged, or
// says to remove it.
func TestFilesOfAnotherMachine(t *testing.T) {
	full(t)
	out := filepath.Join(t.TempDir(), "out")
	args := with(small, "--steps", "2", "--balance", "3,3", "--out", out)
	p := begin(t, nil, launched(2, args...)...)
	if code := p.end(t); code != exitDone {
		t.Fatalf("exit code %d, stderr:\n%s", code, p.stderr)
	}
	step := filepath.Join(out, "step-000002")
	for _, name := range []string{"model-00001-of-00002.safetensors", "optimizer-00001-of-00002.safetensors"} {
		if err := os.Remove(filepath.Join(step, name)); err != nil {
			t.Fatal(err)
		}
	}
	picture := numbersFile(t, "1, 28, 28", make([]float32, 28*28)...)
	before, to := tree(t, out), filepath.Join(t.TempDir(), "to")
	for _, row := range []struct {
		args []string
		code int
	}{
		{with(small, "--steps", "3", "--out", out, "--resume"), exitUsage},
		{with(small, "--steps", "3", "--out", out, "--autoresume"), exitUsage},
		{[]string{"eval", out}, exitFailed},
		{[]string{"predict", out, picture}, exitFailed},
		{[]string{"export", out, "--out", to}, exitFailed},
		{[]string{"checkpoint", "merge", out, "--out", to}, exitFailed},
		{[]string{"checkpoint", "verify", out}, exitFailed},
	} {
		r := command(t, row.args...)
		for _, part := range []string{"step-000002 lacks files:", "model-00001-of-00002.safetensors is missing; it is of layer fc1", "; copy them "} {
			if r.code != row.code || !strings.Contains(r.stderr, part) {
				t.Errorf("%q: exit code %d, want %d and %q; stderr:\n%s", row.args, r.code, row.code, part, r.stderr)
			}
		}
		if strings.Contains(r.stderr, "remove") || strings.Contains(r.stderr, "damaged") {
			t.Errorf("%q: it says %s", row.args, r.stderr)
		}
	}
	if after := tree(t, out); after != before {
		t.Errorf("something changed:\n%s\n%s", before, after)
	}
}
