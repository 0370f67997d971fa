package main

import (
	"regexp"
	"strings"
	"testing"
)

// Sizes that cannot fit are said in one line, and the plan is one of the others.
func TestSizesThatCannotFitAreNotMeasured(t *testing.T) {
	args := []string{"--model", "resnet20", "--set", "size=32,width=4", "--batch", "32", "--devices", "2", "--threads", "1", "--schedule", "1f1b", "--repeats", "1"}
	r := must(t, with([]string{"plan"}, with(args, "--memory-limit", "900KiB", "--format", "json")...)...)
	said := regexp.MustCompile(`(?m)^micro-batches of more rows are not measured: layer "[^"]+" alone takes .* with \d+ rows, and a device may have 921600 bytes`).FindAllStringSubmatch(r.stderr, -1)
	if len(said) != 1 {
		t.Fatalf("stderr:\n%s", r.stderr)
	}
	var line searchLine
	decode(t, r.stdout, &line)
	if line.Rows >= 16 || line.Rows*line.Chunks != 32 {
		t.Errorf("%+v", line)
	}
	if r := must(t, with([]string{"plan"}, args...)...); strings.Contains(r.stderr, "not measured") {
		t.Errorf("without a limit:\n%s", r.stderr)
	}
}
