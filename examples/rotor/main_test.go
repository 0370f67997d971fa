package main

import (
	"bytes"
	"regexp"
	"testing"

	"penstock.example/internal/torchtest"
)

// The tutorial runs to its end, all trainings but that of another model end with the same loss, and
// every peak is as predicted.
func TestTutorial(t *testing.T) {
	torchtest.Check(t)
	var out bytes.Buffer
	if err := tutorial(&out, 256, 3); err != nil {
		t.Fatalf("%v after\n%s", err, &out)
	}
	losses := regexp.MustCompile(`loss ([0-9.]+)`).FindAllStringSubmatch(out.String(), -1)
	if len(losses) != 4 || losses[0][1] != losses[1][1] || losses[0][1] != losses[2][1] {
		t.Errorf("losses are %v, want the first three to be one", losses)
	}
	peaks := regexp.MustCompile(`peak ([0-9]+) bytes, predicted ([0-9]+)`).FindAllStringSubmatch(out.String(), -1)
	for _, p := range peaks {
		if p[1] != p[2] {
			t.Errorf("%s", p[0])
		}
	}
	if len(peaks) != 3 {
		t.Errorf("%d predictions, want 3", len(peaks))
	}
	if t.Failed() {
		t.Logf("the tutorial says\n%s", &out)
	}
}
