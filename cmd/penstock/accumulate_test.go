package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Batches of a step are one batch of all their rows and micro-batches, in any number of
// stages and processes. A step counts as one wherever steps are counted. An epoch has 1,024 samples.
func TestAccumulate(t *testing.T) {
	whole := []string{"train", "--model", "mlp", "--data", "synthetic", "--batch", "256", "--chunks", "8", "--steps", "4",
		"--lr-schedule", "cosine", "--warmup", "1", "--clip-norm", "0.5", "--optimizer", "adam"}
	parts := with(whole, "--batch", "64", "--chunks", "2", "--accumulate", "4", "--format", "json")
	want := sha(t, whole...)
	for _, args := range [][]string{
		parts, with(parts, "--balance", "2,4", "--schedule", "1f1b", "--checkpoint", "always"),
		launched(2, with(parts, "--balance", "2,1,3")...), with(parts, "--stages", "2", "--checkpoint", "optimal", "--memory-limit", "1GiB"),
	} {
		if steps, done := lines(t, mustTrain(t, args...).stdout); len(steps) != 4 || done.Steps != 4 || done.ParamsSHA256 != want {
			t.Errorf("%q: %d steps, %+v; want the weights %s", args, len(steps), done, want)
		}
	}
}

// Replicas that accumulate give the same weights however they are spread over processes.
func TestAccumulateInReplicas(t *testing.T) {
	full(t)
	args := with(small, "--chunks", "2", "--accumulate", "3", "--replicas", "2", "--steps", "3", "--format", "json") // an epoch has 3 steps
	want := sha(t, args...)
	for _, run := range [][]string{launched(2, with(args, "--balance", "6")...), launched(4, with(args, "--balance", "3,3")...)} {
		if _, done := lines(t, mustTrain(t, run...).stdout); done.ParamsSHA256 != want {
			t.Errorf("%q: %+v; want the weights %s", run, done, want)
		}
	}
}

// A run is saved between steps, never between the batches of one, and goes on with as many in a step.
func TestAccumulateResumes(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	args := with(small, "--accumulate", "3") // epochs of 3, 3 and 2 batches
	must(t, with(args, "--steps", "2", "--out", out)...)
	r := command(t, with(small, "--accumulate", "2", "--out", out, "--resume")...)
	if want := "accumulate is 3 there and 2 here; resume with the --accumulate of then"; r.code != exitUsage || !strings.Contains(r.stderr, want) {
		t.Errorf("exit code %d, stderr %q; want %s", r.code, r.stderr, want)
	}
	r = command(t, with(small, "--out", out, "--resume")...)
	if want := "accumulate is 3 there and absent here"; r.code != exitUsage || !strings.Contains(r.stderr, want) {
		t.Errorf("exit code %d, stderr %q; want %s", r.code, r.stderr, want)
	}
	must(t, with(args, "--epochs", "2", "--out", out, "--resume", "--stages", "2", "--balance", "3,3")...)
	metrics, err := os.ReadFile(filepath.Join(out, "metrics.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var steps []string
	for line := range strings.Lines(string(metrics)) {
		if step, _, is := strings.Cut(line, `,"epoch"`); is && strings.Contains(line, `"loss"`) {
			steps = append(steps, step)
		}
	}
	if want := `{"step":1 {"step":2 {"step":3 {"step":4 {"step":5 {"step":6`; strings.Join(steps, " ") != want {
		t.Errorf("metrics.jsonl has a loss of %v, want one of each step to 6", steps)
	}
	r = must(t, with(args, "--epochs", "2", "--out", out, "--resume", "--format", "json")...)
	_, done := lines(t, r.stdout)
	if want := sha(t, with(args, "--epochs", "2")...); done.Steps != 6 || done.ParamsSHA256 != want {
		t.Errorf("going on: %+v, want 6 steps and the weights %s", done, want)
	}
}

// A plan that is given does not count what lies between the batches of a step.
func TestAccumulateRefusesAPlanWithALimit(t *testing.T) {
	r := command(t, "train", "--model", "mlp", "--data", "synthetic", "--plan", "auto", "--memory-limit", "64MiB", "--accumulate", "2", "--steps", "1")
	if r.code != exitUsage || !strings.Contains(r.stderr, "--accumulate 2: --plan auto with a limit does not count gradients between batches") {
		t.Errorf("exit code %d, stderr %q", r.code, r.stderr)
	}
	if r := command(t, with(small, "--accumulate", "0")...); r.code != exitUsage || !strings.Contains(r.stderr, "--accumulate") {
		t.Errorf("exit code %d, stderr %q", r.code, r.stderr)
	}
}
