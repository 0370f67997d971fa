package command

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	noerr "penstock.example/internal/must"
	"penstock.example/internal/proctest"
	"penstock.example/pipe"
	"penstock.example/schedule"
	"penstock.example/torch"
	"penstock.example/train"
)

// TestClosedStdout: whoever reads the first lines only, as head does, ends the run in order: the
// steps that were taken are saved, and going on gives the bits of a run that was not cut short.
func TestClosedStdout(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	stdout, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	cmd := exec.Command(os.Args[0], with(small, "--steps", "1000000", "--save-every", "1000000", "--out",
		out, "--format", "json")...)
	cmd.Env = append(os.Environ(), asCommand+"=1")
	var stderr strings.Builder
	cmd.Stdout, cmd.Stderr = writer, &stderr
	noerr.Do(t, cmd.Start())
	proctest.Watch(t, cmd, proctest.Limit)
	writer.Close()
	if _, err := stdout.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	stdout.Close()
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Fatalf("%v, stderr:\n%s", err, &stderr)
	}
	steps, err := train.Store{Dir: out}.Steps()
	if err != nil || len(steps) != 1 {
		t.Fatalf("checkpoints of %v, %v; stderr:\n%s", steps, err, &stderr)
	}
	for _, want := range []string{"broken pipe\n",
		fmt.Sprintf("step %d is saved in %s/step-", steps[0], out), " --resume\n"} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("no %q in stderr:\n%s", want, &stderr)
		}
	}
	total := fmt.Sprint(steps[0] + 3)
	if got, want := sha(t, with(small, "--steps", total, "--out", out, "--resume")...), sha(t,
		with(small, "--steps", total)...); got != want {
		t.Errorf("cut short after step %d: the resumed run has other weights", steps[0])
	}
}

// TestFullStdout: the same for a disk that is full. The saved steps have their numbers and tests.
func TestFullStdout(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	// text is written at the end
	for format, want := range map[string]string{"json": "step 1 is saved in ",
		"text": "step 3 is saved in "} {
		var stderr strings.Builder
		out := t.TempDir()
		code := run(t.Context(), with(small, "--steps", "3", "--out", out, "--test-every", "1", "--format",
			format), full, &stderr)
		if code != 1 || !strings.Contains(stderr.String(), "no space left") ||
			!strings.Contains(stderr.String(), want) {
			t.Errorf("%s: exit code %d, stderr:\n%s", format, code, &stderr)
		}
		h := history(t, out)
		got := fmt.Sprintf("step %d is saved in ", len(h.Steps))
		if got != want || len(h.Tests) != len(h.Steps) {
			t.Errorf("%s: %d steps and %d tests in the metrics; %s", format, len(h.Steps), len(h.Tests), want)
		}
	}
}

// TestFailureInAStep: after one that diverged nothing is saved, and the last checkpoint is named.
// The flags that diverged are not recommended again.
func TestFailureInAStep(t *testing.T) {
	out := t.TempDir()
	args := with(small, "--steps", "50", "--lr", "1e30", "--out", out)
	r := command(t, args...)
	if r.code != 1 || !strings.Contains(r.stderr, "not a finite number") ||
		!strings.HasSuffix(r.stderr, "\nthere is no checkpoint in "+out+"\n") {
		t.Errorf("exit code %d, stderr:\n%s", r.code, r.stderr)
	}
	r = command(t, with(args, "--save-every", "1")...)
	steps, err := train.Store{Dir: out}.Steps()
	if err != nil || len(steps) == 0 {
		t.Fatalf("%v, %v; stderr:\n%s", steps, err, r.stderr)
	}
	last := steps[len(steps)-1]
	if r.code != 1 || !strings.Contains(r.stderr, fmt.Sprintf("penstock: step %d: ", last+1)) ||
		!strings.HasSuffix(r.stderr, fmt.Sprintf("\nthe last checkpoint in %s is step %d\n", out, last)) {
		t.Errorf("exit code %d, stderr:\n%s", r.code, r.stderr)
	}
}

// TestRefusedStepIsSaved: a step that finds no memory leaves the run before it, which is saved.
func TestRefusedStepIsSaved(t *testing.T) {
	out := t.TempDir()
	must(t, with(small, "--steps", "2", "--out", out)...)
	// the model and the optimizer's state fit
	r := command(t, with(small, "--steps", "4", "--out", out, "--resume", "--memory-limit", "3000000")...)
	if r.code != 1 || !strings.Contains(r.stderr, "out of memory") ||
		!strings.Contains(r.stderr, "step 2 is saved in ") || strings.Contains(r.stderr, goOn) ||
		!strings.HasSuffix(r.stderr,
			"; to go on, change the flags as said and start it again with --resume\n") {
		t.Errorf("exit code %d, stderr:\n%s", r.code, r.stderr)
	}
}

// TestFailureToSave: what cannot be saved is not tried again, and the checkpoint before it is
// named.
func TestFailureToSave(t *testing.T) {
	out := t.TempDir()
	must(t, with(small, "--steps", "2", "--out", out)...)
	// A file in the place of the directory that is renamed to: not removed as a leftover, and in
	// the way even of root.
	mustWrite(t, filepath.Join(out, "step-000004"), "")
	r := command(t, with(small, "--steps", "4", "--out", out, "--resume")...)
	if r.code != 1 || strings.Count(r.stderr, "saving ") != 1 ||
		!strings.Contains(r.stderr, "the last checkpoint in "+out+" is step 2"+goOn+"\n") {
		t.Errorf("exit code %d, stderr:\n%s", r.code, r.stderr)
	}
}

// TestNoFilesLeft: the newest checkpoint is named, also if no file can be opened.
func TestNoFilesLeft(t *testing.T) {
	var before syscall.Rlimit
	noerr.Do(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before))
	t.Cleanup(func() { afterStep = nil })
	afterStep = func(s train.StepInfo) error {
		if s.Step < 3 {
			return nil
		}
		return errors.Join(errors.New("broken"),
			syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 0, Max: before.Max}))
	}
	out := t.TempDir()
	r := command(t, with(small, "--steps", "4", "--save-every", "2", "--out", out)...)
	noerr.Do(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before))
	if r.code != 1 || !strings.Contains(r.stderr, "the last checkpoint in "+out+" is step 2"+goOn+"\n") {
		t.Errorf("exit code %d, stderr:\n%s", r.code, r.stderr)
	}
}

// TestOutInUse: two runs in one directory would remove each other's checkpoints.
func TestOutInUse(t *testing.T) {
	out := t.TempDir()
	args := with(small, "--steps", "2", "--out", out)
	release := noerr.Get(train.Store{Dir: out}.Lock())(t)
	for _, args := range [][]string{args, with(args, "--resume")} {
		if r := command(t, args...); r.code != 1 || r.stdout != "" ||
			!strings.Contains(r.stderr, "another run uses --out "+out) {
			t.Errorf("%q: exit code %d, stderr:\n%s", args, r.code, r.stderr)
		}
	}
	noerr.Do(t, release())
	must(t, args...)
	must(t, with(args, "--resume")...) // the run before has let go of it
}

// TestResumeBeyondTheEnd: it is said, and the run is done.
func TestResumeBeyondTheEnd(t *testing.T) {
	out := t.TempDir()
	args := with(small, "--out", out)
	want := sha(t, with(args, "--steps", "9")...) // an epoch has 8
	for _, flag := range []string{"--steps=3", "--epochs=1", "--steps=9"} {
		r := must(t, with(args, flag, "--resume", "--format", "json")...)
		if _, done := lines(t, r.stdout); done.Steps != 9 || done.ParamsSHA256 != want ||
			!strings.HasPrefix(r.stderr, "going on from ") || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%s: %+v, stderr:\n%s", flag, done, r.stderr)
		}
	}
}

// A failure is one line. The stack of a panic follows it, for whoever mends the code that panicked.
func TestFailuresAreOneLineAndPanicsHaveTheirStackAfterIt(t *testing.T) {
	panicked := func() (err error) {
		defer func() {
			err = &pipe.Error{Stage: 1, Layer: "2", Direction: schedule.Forward, Err: torch.Caught(recover())}
		}()
		panic("out of luck")
	}()
	for _, row := range []struct {
		err   error
		line  string
		stack bool
	}{
		{fmt.Errorf("train: step 3: %w", os.ErrClosed), "penstock: step 3: file already closed", false},
		{fmt.Errorf("train: step 3: %w", panicked),
			`penstock: step 3: pipe: stage 1, micro-batch 0, layer "2", forward: panic: out of luck`, true},
	} {
		var stderr strings.Builder
		printError(&stderr, row.err)
		line, rest, _ := strings.Cut(stderr.String(), "\n")
		if line != row.line {
			t.Errorf("got  %s\nwant %s", line, row.line)
		}
		if got := strings.Contains(rest, "failure_test.go"); got != row.stack || !row.stack && rest != "" {
			t.Errorf("after the message: %q", rest)
		}
	}
}

// A regression on columns of thousands diverges; what helps is said.
func TestDivergingRegression(t *testing.T) {
	rows := strings.Repeat("70000,3,250000.5\n20,9,990000.5\n4000,1,130000.5\n", 20)
	run := []string{"train", "--model", "mlp", "--data", "csv", "--batch", "8", "--steps", "9", "--data-dir",
		textFile(t, "a.csv", "a,b,price\n"+rows)}
	refuses(t, run, exitFailed, "the loss is not a finite number; use a smaller --lr, or --clip-norm, or "+
		"--data-set standardise=1 for columns of different scales")
	r := command(t, with(run, "--data-set", "standardise=1", "--lr", "100")...)
	if strings.Contains(r.stderr, "standardise") {
		t.Errorf("stderr: %s", r.stderr)
	}
}
