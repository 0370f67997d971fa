package command

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"penstock.example/internal/metrics"
	noerr "penstock.example/internal/must"
	"penstock.example/train"
)

// A run with --validate tells each epoch, keeps the best checkpoint and the newest ones, stops when it
// learns nothing more, and goes on as one that was never interrupted.
func TestValidate(t *testing.T) {
	dir := t.TempDir()
	run := func(name string, more ...string) (ran, []validationLine) {
		t.Helper()
		r := must(t, with(with(small, "--data-set", "train=256,test=64", "--validate", "0.25", "--batch",
			"64", "--lr", "0.5", "--keep", "1", "--format", "json", "--out", filepath.Join(dir, name)),
			more...)...)
		var all []validationLine
		for line := range strings.Lines(r.stdout) {
			if strings.HasPrefix(line, `{"epoch":`) {
				var v validationLine
				noerr.Do(t, json.Unmarshal([]byte(line), &v))
				all = append(all, v)
			}
		}
		return r, all
	}
	whole, said := run("a", "--epochs", "6")
	best := 0
	for i, v := range said {
		if v.Epoch != i || v.Step != int64(3*(i+1)) || v.Accuracy == nil {
			t.Errorf("%+v", v)
		}
		if v.Better {
			best = i
		}
	}
	if len(said) != 6 {
		t.Fatalf("%+v", said)
	}
	first, _ := run("b", "--epochs", "2")
	second, later := run("b", "--epochs", "6", "--resume")
	if sumOf(t, whole) != sumOf(t, second) || sumOf(t, first) == sumOf(t, second) ||
		fmt.Sprint(*later[3].Accuracy, later[3].Loss, later[3].Better) != fmt.Sprint(*said[5].Accuracy,
			said[5].Loss, said[5].Better) {
		t.Errorf("%+v after resuming; want %+v", later, said)
	}
	c, err := findCheckpoint(filepath.Join(dir, "a"), false)
	if err != nil || c.Best == nil || c.Best.Epoch != best || c.Best.Since != 5-best {
		t.Fatalf("%+v, %v; want epoch %d", c, err, best)
	}
	e := evaluated(t, filepath.Join(dir, "a"), "--best", "--part", "validation", "--stages", "2")
	if e.Step != c.Best.Step || *e.Loss != said[best].Loss || e.Samples != 64 {
		t.Errorf("%+v of step %d; want %+v", e.Evaluation, e.Step, said[best])
	}
	steps, err := train.Store{Dir: filepath.Join(dir, "a")}.Steps()
	if want := map[bool]int{true: 1, false: 2}[best == 5]; err != nil || len(steps) != want {
		t.Errorf("steps %v, %v", steps, err)
	}
	h, err := metrics.Read(filepath.Join(dir, "b", metrics.FileName))
	if err != nil || len(h.Validations) != 6 || len(h.Tests) != 2 ||
		*h.Validations[5].TestLoss != said[5].Loss {
		t.Errorf("%+v, %v", h.Validations, err)
	}

	// A rate at which nothing is learnt: the first epoch is the best.
	r, said := run("c", "--epochs", "9", "--lr", "1e-30", "--patience", "2", "--save-every", "100")
	if len(said) != 3 || !strings.Contains(r.stderr,
		"--patience 2: stopped after step 9; the lowest validation loss was ") {
		t.Errorf("%+v, stderr:\n%s", said, r.stderr)
	}
	if c, err := findCheckpoint(filepath.Join(dir, "c"), false); err != nil || c.Best.Step != 3 ||
		c.Best.Since != 2 {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "c", "step-000003")); err != nil {
		t.Error(err)
	}
	r, said = run("c", "--epochs", "9", "--lr", "1e-30", "--patience", "3", "--resume")
	if len(said) != 1 || !strings.Contains(r.stderr, "--patience 3: stopped after step 12") {
		t.Errorf("%+v, stderr:\n%s", said, r.stderr)
	}
	for _, row := range []struct {
		args []string
		code int
		part string
	}{
		{[]string{"--validate", "1"}, exitUsage,
			"--validate 1: want a share of the training samples between 0 and 1, such as 0.1, or test"},
		{[]string{"--patience", "2"}, exitUsage, "--patience 2 has no effect without --validate"},
		{[]string{"--keep", "2"}, exitUsage, "--keep 2 has no effect without --out DIR"},
		{[]string{"--data-set", "train=1", "--validate", "0.5"}, exitUsage, "--validate 0.5: "},
	} {
		refuses(t, with(with(small, "--steps", "1"), row.args...), row.code, row.part)
	}
	refuses(t, with(small, "--data-set", "train=256,test=64", "--validate", "0.5", "--batch", "64", "--lr",
		"0.5", "--resume", "--out", filepath.Join(dir, "a")), exitUsage,
		`data.settings.validation is "0.25" there and "0.5" here; resume with the saved flags and data`)
}

// sumOf is the hash of the weights at the end of a run.
func sumOf(t *testing.T, r ran) string {
	t.Helper()
	found := regexp.MustCompile(`"params_sha256":"(\w+)"`).FindStringSubmatch(r.stdout)
	if found == nil {
		t.Fatal(r.stdout)
	}
	return found[1]
}
