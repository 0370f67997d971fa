package command

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"penstock.example/internal/draws"
	noerr "penstock.example/internal/must"
)

// whatWasTrained runs a training and returns all of its numbers that do not depend on the machine:
// losses and norms of the steps, accuracies of the tests, the hash of the weights. Nothing but --out
// may be left.
func whatWasTrained(t *testing.T, run ...string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out")
	_, done := lines(t, mustTrain(t, with(run, "--out", out, "--format", "json")...).stdout)
	metrics := noerr.Get(os.ReadFile(filepath.Join(out, "metrics.jsonl")))(t)
	var all strings.Builder
	for line := range strings.Lines(string(metrics)) {
		var numbers map[string]any
		noerr.Do(t, json.Unmarshal([]byte(line), &numbers))
		for _, name := range []string{"time", "samples_per_s", "peak_bytes"} {
			delete(numbers, name)
		}
		fmt.Fprintln(&all, numbers)
	}
	fmt.Fprintln(&all, done.Steps, *done.TestAccuracy, done.ParamsSHA256)
	if left, err := filepath.Glob(out + "/.*"); err != nil || len(left) > 0 {
		t.Errorf("%q leaves %v, %v", run, left, err)
	}
	return all.String()
}

// Processes train as one with everything that crosses from one to another: skips and tied weights of a
// GPT, deferred statistics, clipped gradients, tests on the way, stages that lie in a loop or fold
// back, and a last batch that is short.
func TestProcessesTrainAsOneWithAllThatCrosses(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text")
	noerr.Do(t, os.WriteFile(text, []byte(strings.Repeat("a text that is long enough. ", 70)), 0o666))
	gpt := []string{"train", "--model", "gpt", "--set", "depth=2,width=16,heads=2,dropout=0.1", "--data",
		"text", "--data-dir", text, "--window", "16",
		// 34 layers
		"--batch", "14", "--chunks", "3", "--epochs", "1", "--test-every", "3", "--clip-norm", "0.5",
		"--optimizer", "adamw"}
	// 11 layers
	resnet := []string{"train", "--model", "resnet20", "--data", "synthetic", "--batch", "24", "--chunks",
		"3", "--steps", "2", "--deferred-batch-norm", "--autocast"}
	for _, row := range []struct {
		name string
		one  []string   // what one process is given
		many [][]string // processes, and what they are given beside that
	}{
		{"gpt", gpt, [][]string{
			{"2", "--balance", "7,8,9,10", "--stages", "2", "--virtual", "2", "--schedule", "zb-v",
				"--checkpoint", "never"},
			{"2", "--balance", "7,8,9,10", "--stages", "2", "--virtual", "2", "--schedule", "interleaved"},
			{"8", "--balance", "3,4,5,4,4,5,4,5", "--schedule", "1f1b", "--checkpoint", "always"},
		}},
		{"resnet20", resnet, [][]string{{"3", "--balance", "2,2,2,2,2,1", "--stages", "3", "--virtual", "2",
			"--schedule", "bfs"}}},
	} {
		t.Run(row.name, func(t *testing.T) {
			if !draws.Full {
				row.many = row.many[:1]
			}
			want := whatWasTrained(t, row.one...)
			if n := strings.Count(want, "accuracy"); row.name == "gpt" && n < 3 {
				t.Fatalf("%d tests, want some on the way:\n%s", n, want)
			}
			for _, m := range row.many {
				args := with([]string{"launch", "--processes", m[0], "--"}, with(row.one, m[1:]...)...)
				if got := whatWasTrained(t, args...); got != want {
					t.Errorf("%q:\n%swant\n%s", m, got, want)
				}
			}
		})
	}
}
