package command

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"penstock.example/internal/metrics"
	noerr "penstock.example/internal/must"
	"penstock.example/internal/proctest"
)

// history is what a run with --out has measured.
func history(t testing.TB, out string) metrics.History {
	t.Helper()
	return noerr.Get(metrics.Read(filepath.Join(out, metrics.FileName)))(t)
}

// ofTime are fields that differ from run to run.
var ofTime = cmp.Options{cmpopts.IgnoreFields(metrics.Step{}, "Time", "SamplesPerSecond", "PeakBytes"),
	cmpopts.IgnoreFields(metrics.Test{}, "Time")}

// A line for each step has what was measured, and tests in between change nothing else. An epoch has
// 8 steps.
func TestMetrics(t *testing.T) {
	args := with(small, "--steps", "10", "--clip-norm", "1", "--balance", "3,3", "--lr-schedule", "cosine")
	want := sha(t, args...)
	out := filepath.Join(t.TempDir(), "out")
	steps, done := lines(t, must(t, with(args, "--out", out, "--test-every", "4", "--format",
		"json")...).stdout)
	if done.ParamsSHA256 != want {
		t.Error("other weights than without tests in between")
	}
	h := history(t, out)
	if len(h.Steps) != 10 || len(h.Tests) != 3 || h.Tests[0].Step != 4 || h.Tests[1].Step != 8 ||
		h.Tests[2].Step != 10 {
		t.Fatalf("%+v", h)
	}
	if got := *h.Tests[2].Accuracy; got != *done.TestAccuracy {
		t.Errorf("accuracy %v in the end, the run says %v", got, *done.TestAccuracy)
	}
	for i, s := range h.Steps {
		said := steps[i]
		if got := (stepLine{s.Step, s.Loss, s.SamplesPerSecond, s.PeakBytes}); !cmp.Equal(got, said) {
			t.Errorf("line %+v, the run says %+v", got, said)
		}
		if s.Epoch != i/8 || s.LR <= 0 || i > 0 && s.LR >= h.Steps[i-1].LR || s.GradNorm == nil ||
			*s.GradNorm <= 0 {
			t.Errorf("%+v", s)
		}
		if age := time.Since(time.UnixMilli(int64(1000 * s.Time))); age < 0 || age > time.Hour {
			t.Errorf("step %d was %v ago", s.Step, age)
		}
	}
}

// A run that is resumed, also from an older checkpoint or after it was killed, has the lines of one
// that was not.
func TestMetricsOfResumedRuns(t *testing.T) {
	args := with(small, "--steps", "17", "--save-every", "5", "--test-every", "5")
	whole, out := filepath.Join(t.TempDir(), "whole"), filepath.Join(t.TempDir(), "out")
	must(t, with(args, "--out", whole)...)
	want := history(t, whole)
	if len(want.Steps) != 17 || want.Steps[3].GradNorm != nil {
		t.Fatalf("%+v", want)
	}

	must(t, with(args, "--steps", "12", "--out", out)...)
	noerr.Do(t, os.RemoveAll(filepath.Join(out, "step-000012")))
	for range 2 { // the second time nothing is left to do
		must(t, with(args, "--out", out, "--resume")...)
		if diff := cmp.Diff(want, history(t, out), ofTime); diff != "" {
			t.Error(diff)
		}
	}
}

// A run that is killed somewhere after a checkpoint goes on with the line after it.
func TestMetricsOfAKilledRun(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	args := with(small, "--save-every", "7", "--test-every", "5", "--out", out)
	cmd := exec.Command(os.Args[0], with(args, "--steps", "1000000")...)
	cmd.Env = append(os.Environ(), asCommand+"=1")
	noerr.Do(t, cmd.Start())
	for began := time.Now(); time.Since(began) < proctest.Limit; time.Sleep(time.Millisecond) {
		if saved, _ := filepath.Glob(filepath.Join(out, "step-*")); len(saved) > 0 {
			break
		}
	}
	cmd.Process.Kill()
	cmd.Wait()
	last := lastStep(t, out) + 3
	must(t, with(args, "--steps", fmt.Sprint(last), "--resume")...)
	h := history(t, out)
	if int64(len(h.Steps)) != last || int64(len(h.Tests)) != (last-1)/5+1 {
		t.Errorf("%d steps and %d tests after %d steps", len(h.Steps), len(h.Tests), last)
	}
	for i, s := range h.Steps {
		if s.Step != int64(i+1) {
			t.Fatalf("line %d is of step %d", i+1, s.Step)
		}
	}
}

// Of several processes the first writes, and the numbers are of all.
func TestMetricsOfProcesses(t *testing.T) {
	dir := t.TempDir()
	out, events := filepath.Join(dir, "out"), filepath.Join(dir, "events")
	p := begin(t, nil, launched(2, with(small, "--steps", "3", "--test-every", "2", "--balance", "3,3",
		"--out", out, "--tensorboard", events)...)...)
	if code := p.end(t); code != exitDone {
		t.Fatalf("exit code %d: %s", code, p.said(0))
	}
	h := history(t, out)
	if len(h.Steps) != 3 || len(h.Tests) != 2 || len(h.Steps[0].PeakBytes) != 2 ||
		h.Steps[0].PeakBytes[1] == 0 {
		t.Errorf("%+v", h)
	}
	if files, err := os.ReadDir(events); err != nil || len(files) != 1 {
		t.Errorf("%d event files, %v", len(files), err)
	}
}

// What stands in the way of the files is said before anything is trained.
func TestMetricsRefused(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, metrics.FileName)
	noerr.Do(t, os.WriteFile(file, []byte("my notes\n"), 0o666))
	if r := command(t, with(small, "--steps", "1", "--out", dir)...); r.code != exitFailed ||
		r.stdout != "" || !strings.HasPrefix(r.stderr, "penstock: --out "+dir+" cannot be written: ") {
		t.Errorf("%+v", r)
	}
	for _, path := range []string{file, filepath.Join(file, "events")} {
		r := command(t, with(small, "--steps", "1", "--tensorboard", path)...)
		if r.code == exitDone || r.stdout != "" ||
			!strings.HasPrefix(r.stderr, "penstock: --tensorboard "+path+" cannot be written: ") {
			t.Errorf("%+v", r)
		}
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "my notes\n" {
		t.Errorf("%q, %v", text, err)
	}
}
