package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"penstock/torch"
	"penstock/train"
)

func step(n int64) train.StepInfo {
	return train.StepInfo{Step: n, Loss: 1.5, Samples: 10, Duration: 20 * time.Millisecond, SamplesPerSecond: 500, Peak: []int64{1 << 20, 3 << 20}}
}

func textReport(stdout, stderr *bytes.Buffer) *textReporter {
	return &textReporter{stdout: stdout, stderr: stderr, title: "a on b", devices: []torch.Device{torch.CPU(4), torch.CPU(5)}, last: 9}
}

func TestTextReport(t *testing.T) {
	torch.CPU(5).SetLimit(4 << 20)
	defer torch.CPU(5).SetLimit(0)
	var stdout, stderr bytes.Buffer
	r := textReport(&stdout, &stderr)
	for n := int64(7); n <= 9; n++ {
		if err := r.step(step(n)); err != nil {
			t.Fatal(err)
		}
	}
	r.endSteps()
	// The first step of the run and the last of all; the one between is too soon.
	want := "step 7/9  loss 1.5000  500 samples/s  cpu:4 1.0 MiB  cpu:5 3.0 MiB of 4.0 MiB\n" +
		"step 9/9  loss 1.5000  500 samples/s  cpu:4 1.0 MiB  cpu:5 3.0 MiB of 4.0 MiB\n"
	if stderr.String() != want {
		t.Errorf("got\n%swant\n%s", &stderr, want)
	}
	if err := r.done(outcome{9, 0.875, "abc", "out/step-000009", ""}); err != nil {
		t.Fatal(err)
	}
	want = `a on b: 9 steps done
test accuracy  87.50 %
speed          500 samples/s, 20 ms a step (median)
peak memory    cpu:4 1.0 MiB  cpu:5 3.0 MiB of 4.0 MiB
parameters     sha256 abc
checkpoint     out/step-000009
`
	if stdout.String() != want {
		t.Errorf("got\n%swant\n%s", &stdout, want)
	}
}

func TestBar(t *testing.T) {
	var stderr bytes.Buffer
	r := textReport(nil, &stderr)
	r.bar = newBar(&stderr, 7, 9)
	r.endSteps() // a run without steps
	if stderr.Len() > 0 {
		t.Errorf("a bar without steps: %q", &stderr)
	}
	for n := int64(8); n <= 9; n++ {
		if err := r.step(step(n)); err != nil {
			t.Fatal(err)
		}
	}
	r.endSteps()
	for _, want := range []string{"8/9  loss 1.5000  500 samples/s", "9/9  loss", "100%", "cpu:4 1.0 MiB  cpu:5 3.0 MiB"} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("no %q in %q", want, &stderr)
		}
	}
	if !strings.HasSuffix(stderr.String(), "\n") {
		t.Errorf("what follows would stand beside the bar: %q", &stderr)
	}
}

func TestIsTerminal(t *testing.T) {
	file, err := os.Create(t.TempDir() + "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if isTerminal(file) || isTerminal(&bytes.Buffer{}) {
		t.Error("a file and a buffer are no terminals")
	}
}

func TestMedian(t *testing.T) {
	for _, tt := range []struct {
		ms   []int
		want float64
	}{{[]int{7}, 7}, {[]int{9, 1, 5}, 5}, {[]int{4, 1, 9, 2}, 3}} {
		var d durations
		for _, ms := range tt.ms {
			d.add(time.Duration(ms) * time.Millisecond)
		}
		if got, ok := d.median(); !ok || got != tt.want {
			t.Errorf("%v: got %v, %v", tt.ms, got, ok)
		}
	}
	if _, ok := (durations{}).median(); ok {
		t.Error("no steps have a median")
	}
}

func TestShellQuoted(t *testing.T) {
	for want, words := range map[string][]string{
		`penstock train --out a/b.c --balance 5,6`: {"penstock", "train", "--out", "a/b.c", "--balance", "5,6"},
		`'' 'a b' 'it'\''s' '$x' '--out=~'`:        {"", "a b", "it's", "$x", "--out=~"},
	} {
		if got := shellQuoted(words); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// TestFlagOf: what a checkpoint of another run differs in is told by the name of a flag that exists.
func TestFlagOf(t *testing.T) {
	cmd := newTrain(nil)
	for field, want := range map[string]string{
		"batch": "--batch", "chunks": "--chunks", "seed": "--seed", "clip_norm": "--clip-norm", "model.name": "--model", "model.settings.classes": "--data",
		"data.name": "--data", "data.settings.samples": "--data-dir", "optimizer.name": "--optimizer", "optimizer.settings.weight-decay": "--weight-decay",
		"schedule.name": "--schedule", "schedule.settings.schedule-steps": "--schedule-steps", `tensor "fc.weight"`: "--model",
	} {
		if got := flagOf(field); got != want || cmd.Flags().Lookup(strings.TrimPrefix(got, "--")) == nil {
			t.Errorf("%s: got %s, want %s", field, got, want)
		}
	}
}
