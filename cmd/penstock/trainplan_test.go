package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A plan of a model is what training runs: no device holds more than the plan says, which is no more than
// the limit.
func TestTrainingByAPlan(t *testing.T) {
	file := filepath.Join(t.TempDir(), "plan.json")
	const limit = 3 << 20
	got := must(t, "plan", "--model", "mlp", "--batch", "64", "--devices", "2", "--memory-limit", fmt.Sprint(limit), "--repeats", "1", "--out", file)
	if !strings.Contains(got.stdout, "the best") {
		t.Errorf("no table:\n%s", got.stdout)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var line searchLine
	if err := json.Unmarshal(text, &line); err != nil {
		t.Fatal(err)
	}
	if len(line.Balance) != 2 || line.Balance[0]+line.Balance[1] != 6 {
		t.Errorf("a balance of %v, want the 6 layers of mlp on 2 devices", line.Balance)
	}
	trained := func(args ...string) stepLine {
		got := must(t, with([]string{"train", "--data", "synthetic", "--steps", "2", "--format", "json"}, args...)...)
		lines := strings.Split(got.stdout, "\n")
		var step stepLine
		if err := json.Unmarshal([]byte(lines[1]), &step); err != nil {
			t.Fatal(err)
		}
		return step
	}
	step := trained("--plan", file)
	for device, peak := range step.PeakBytes {
		if peak > line.Peak[device] || peak > limit {
			t.Errorf("device %d: training holds %d bytes, the plan says %d, the limit is %d", device, peak, line.Peak[device], limit)
		}
	}
	if step = trained("--plan", "auto", "--model", "mlp", "--batch", "64", "--memory-limit", "3MiB", "--stages", "2", "--chunks", fmt.Sprint(line.Chunks)); len(step.PeakBytes) != 2 {
		t.Errorf("%d devices, want 2", len(step.PeakBytes))
	}

	write := func(name, text string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"train", "--plan", file, "--data", "synthetic", "--model", "resnet20"}, "--model resnet20: the plan of --plan " + file + " has mlp"},
		{[]string{"train", "--plan", file, "--data", "synthetic", "--batch", "32"}, "has 64"},
		{[]string{"train", "--plan", file, "--data", "synthetic", "--memory-limit", "4MiB"}, "--memory-limit 4194304"},
		{[]string{"train", "--plan", write("junk", "{"), "--data", "synthetic"}, "want a file that penstock plan --model has written"},
		{[]string{"train", "--plan", write("chain", `{"balance":[1],"schedule":"gpipe","chunks":1}`), "--data", "synthetic"}, "made from a chain"},
		{[]string{"train", "--plan", write("name", `{"balance":[1],"schedule":"g","chunks":1}`), "--data", "synthetic"}, `no schedule "g"`},
		{[]string{"train", "--plan", write("stages", `{"balance":[1,1,1],"schedule":"zb-v","virtual":2,"chunks":1,"model":"mlp","batch":3}`), "--data", "synthetic"}, "3 stages are not 2 on each device"},
		{[]string{"train", "--plan", filepath.Join(t.TempDir(), "none"), "--data", "synthetic"}, "no such file"},
		{[]string{"train", "--plan", "auto", "--data", "synthetic"}, "--model is needed"},
		{[]string{"plan", "--model", "mlp"}, "want --batch N"},
		{[]string{"plan", "--model", "mlp", "--batch", "9", "--chunks", "2"}, "--chunks 2: it does not divide"},
		{[]string{"plan", "--model", "mlp", "--batch", "8", "--devices", "7"}, "mlp has 6 layers"},
		{[]string{"plan", "--model", "mlp", "--batch", "8", "--devices", "2", "--memory-limit", "10KiB", "--repeats", "1"}, "at least"},
		{[]string{"plan", "chain.json", "--model", "mlp", "--batch", "8"}, "want one of the two"},
		{[]string{"plan", "--batch", "8"}, "CHAIN, or --model NAME, is missing"},
		{[]string{"plan", "chain.json", "--repeats", "2", "--stages", "1", "--chunks", "1"}, "want --model NAME with it"},
	} {
		got := command(t, test.args...)
		if got.code != exitUsage && got.code != 1 || !strings.Contains(got.stderr, test.want) {
			t.Errorf("%v: exit %d, want %q in\n%s", test.args, got.code, test.want, got.stderr)
		}
	}
}
