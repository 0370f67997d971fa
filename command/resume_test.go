package command

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	noerr "penstock.example/internal/must"
	"penstock.example/internal/proctest"
	"penstock.example/internal/torchtest"
)

// sha runs a training run and returns the hash of its weights.
func sha(t testing.TB, args ...string) string {
	t.Helper()
	_, done := lines(t, must(t, with(args, "--format", "json")...).stdout)
	return done.ParamsSHA256
}

// TestResume: runs that are cut short and resumed, under other cuts, end with the bits of those
// that are not. An epoch has 8 steps.
func TestResume(t *testing.T) {
	for _, training := range [][]string{
		{"--nesterov", "--weight-decay", "0.001"},
		{"--optimizer", "adam", "--lr-schedule", "cosine", "--warmup", "2", "--schedule-steps", "11",
			"--clip-norm", "1"},
	} {
		args := with(small, training...)
		want := sha(t, with(args, "--steps", "11")...)
		out := filepath.Join(t.TempDir(), "deep", "out")
		must(t, with(args, "--steps", "3", "--balance", "3,3", "--out", out)...)
		must(t, with(args, "--steps", "9", "--stages", "3", "--out", out, "--resume")...)
		r := must(t, with(args, "--steps", "11", "--balance", "1,5", "--checkpoint", "always", "--out", out,
			"--resume", "--format", "json")...)
		steps, done := lines(t, r.stdout)
		if done.ParamsSHA256 != want {
			t.Errorf("%q: other weights than without interruption", training)
		}
		if done.Steps != 11 || len(steps) != 2 || steps[0].Step != 10 {
			t.Errorf("%q: %+v after %+v", training, done, steps)
		}
	}
}

// A launcher starts a run again with the command line of the start: it goes on from what was saved.
func TestRestartedByALauncher(t *testing.T) {
	want := sha(t, with(small, "--steps", "5")...)
	for _, name := range []string{"TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"} {
		t.Setenv(name, "1")
		out := filepath.Join(t.TempDir(), "out")
		args := with(small, "--out", out)
		must(t, with(args, "--steps", "3")...) // nothing was saved before
		r := must(t, with(args, "--steps", "5", "--format", "json")...)
		if _, done := lines(t, r.stdout); done.ParamsSHA256 != want ||
			!strings.HasPrefix(r.stderr, "going on from "+out) {
			t.Errorf("%s: %+v, stderr:\n%s", name, done, r.stderr)
		}
		t.Setenv(name, "0")
		if r := command(t, with(args, "--steps", "6")...); r.code != exitUsage ||
			!strings.Contains(r.stderr, "--resume") {
			t.Errorf("%s=0: exit code %d, stderr:\n%s", name, r.code, r.stderr)
		}
		t.Setenv(name, "")
	}
}

// A machine that joins a job of torchrun is a start that counts as none: with --autoresume every start has
// the same command line.
func TestAutoresume(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	args := with(small, "--out", out, "--autoresume", "--format", "json")
	if r := must(t, with(args, "--steps", "3")...); r.stderr != "" {
		t.Errorf("nothing to go on from: %s", r.stderr)
	}
	r := must(t, with(args, "--steps", "5")...)
	if steps, done := lines(t, r.stdout); len(steps) != 2 ||
		done.ParamsSHA256 != sha(t, with(small, "--steps", "5")...) ||
		!strings.HasPrefix(r.stderr, "going on from "+out) {
		t.Errorf("%+v, stderr:\n%s", done, r.stderr)
	}
}

func TestResumeOfACompleteRun(t *testing.T) {
	out := t.TempDir()
	args := with(small, "--epochs", "1", "--out", out)
	want := sha(t, args...)
	r := must(t, with(args, "--resume", "--format", "json", "--trace", filepath.Join(out, "trace.json"))...)
	if strings.Count(r.stdout, "\n") != 1 || !strings.Contains(r.stdout, want) ||
		!strings.Contains(r.stdout, `"step_ms_median":null`) {
		t.Errorf("stdout: %s", r.stdout)
	}
	if !strings.Contains(r.stderr, "no step was recorded") {
		t.Errorf("stderr: %s", r.stderr)
	}
}

func TestOutHolds(t *testing.T) {
	out := t.TempDir()
	foreign := filepath.Join(out, "steps.jsonl")
	mustWrite(t, foreign, "{}\n")
	args := with(small, "--steps", "2", "--out", out)
	must(t, args...) // files of others are no obstacle
	before := tree(t, out)
	tests := []struct {
		args []string
		want []string
	}{
		{args, []string{"--resume", "--out"}},
		{with(args, "--resume", "--model", "resnet20"), []string{"model.name", `"mlp"`, `"resnet20"`}},
		{with(args, "--resume", "--batch", "64"), []string{"batch is 128 there and 64 here"}},
		{with(args, "--resume", "--chunks", "2"), []string{"chunks is 4 there and 2 here"}},
		{with(args, "--resume", "--seed", "9"), []string{"seed is 1 there and 9 here"}},
		{with(args, "--resume", "--optimizer", "adam"), []string{"optimizer", `"sgd"`, `"adam"`}},
		{with(args, "--resume", "--lr-schedule", "cosine"), []string{`"constant"`, `"cosine"`}},
		{with(args, "--resume", "--clip-norm", "2"), []string{"clip_norm is 0 there and 2 here"}},
	}
	for _, tt := range tests {
		r := command(t, tt.args...)
		if r.code != exitUsage || r.stdout != "" || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%q: exit code %d, stdout %q, stderr:\n%s", tt.args, r.code, r.stdout, r.stderr)
		}
		for _, part := range tt.want {
			if !strings.Contains(r.stderr, part) {
				t.Errorf("%q: no %q in %s", tt.args, part, r.stderr)
			}
		}
	}
	if after := tree(t, out); after != before {
		t.Errorf("something changed:\n%s\n%s", before, after)
	}

	model := filepath.Join(out, "step-000002", "model.safetensors")
	noerr.Do(t, os.Truncate(model, 1000))
	r := command(t, with(args, "--resume")...)
	if r.code != exitUsage || !strings.Contains(r.stderr, "step-000002 is damaged: model.safetensors ") ||
		!strings.Contains(r.stderr, "start anew with another --out") {
		t.Errorf("exit code %d, stderr: %s", r.code, r.stderr)
	}
}

// tree describes all files below a directory.
func tree(t testing.TB, dir string) string {
	t.Helper()
	var b strings.Builder
	noerr.Do(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && !d.IsDir() {
			fmt.Fprintln(&b, path, info.Size(), info.ModTime())
		}
		return err
	}))
	return b.String()
}

func TestSaveEvery(t *testing.T) {
	out := t.TempDir()
	must(t, with(small, "--steps", "7", "--save-every", "3", "--out", out)...)
	entries, err := filepath.Glob(filepath.Join(out, "step-*"))
	if err != nil || len(entries) != 2 || filepath.Base(entries[0]) != "step-000006" ||
		filepath.Base(entries[1]) != "step-000007" {
		t.Errorf("%q, %v", entries, err)
	}
}

func TestInterruptedBeforeTheFirstStep(t *testing.T) {
	torchtest.Check(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, args := range [][]string{small, with(small, "--stages", "2")} {
		var stdout, stderr bytes.Buffer
		if code := run(ctx, args, &stdout, &stderr); code != exitFailed || stdout.Len() > 0 ||
			!strings.Contains(stderr.String(), "interrupted") {
			t.Errorf("exit code %d, stdout %q, stderr %q", code, &stdout, &stderr)
		}
	}
}

// TestSignal: a signal lets the step finish, saves, and says how to go on; going on gives the bits
// of a run without it.
func TestSignal(t *testing.T) {
	for _, signal := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1,
		syscall.SIGUSR2, syscall.SIGXCPU} {
		out := filepath.Join(t.TempDir(), "it's out")
		p := begin(t, nil, with(small, "--steps", "1000000", "--out", out, "--format", "json")...)
		p.after(t, 1)
		if err := p.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		for range 3 { // the system repeats SIGXCPU
			if time.Sleep(time.Millisecond); signal != os.Interrupt {
				_ = p.Process.Signal(signal)
			}
		}
		if code := p.end(t); code != exitFailed {
			t.Fatalf("%v: exit code %d, stderr:\n%s", signal, code, p.stderr)
		}
		steps := strings.Count(p.stdout.String(), "\n")
		for _, want := range []string{"finishing the step; Ctrl-C again ends at once\n",
			fmt.Sprintf("interrupted after step %d; saved in %s", steps, out), " --resume\n"} {
			if !strings.Contains(p.stderr.String(), want) {
				t.Errorf("%v: no %q in stderr:\n%s", signal, want, p.stderr)
			}
		}
		total := fmt.Sprint(steps + 3)
		if got, want := sha(t, with(small, "--steps", total, "--out", out, "--resume")...), sha(t,
			with(small, "--steps", total)...); got != want {
			t.Errorf("%v after step %d: the resumed run has other weights", signal, steps)
		}
	}
}

// A run under nohup goes on when its terminal hangs up.
func TestNohup(t *testing.T) {
	p := beginIn(t, []string{"sh", "-c", `trap "" HUP; exec "$0" "$@"`}, nil,
		with(small, "--steps", "1000000", "--format", "json")...)
	p.after(t, 1)
	noerr.Do(t, p.Process.Signal(syscall.SIGHUP))
	p.after(t, strings.Count(p.stdout.String(), "\n")+5)
}

// A run that hangs before its first step has nothing to lose, so that one signal ends it.
func TestASignalToARunThatHangs(t *testing.T) {
	p := begin(t, []string{hangs + "=1"}, small...)
	defer proctest.Watch(t, p.Cmd, proctest.Limit)()
	for ; p.stdout.String() == ""; time.Sleep(time.Millisecond) {
	}
	noerr.Do(t, p.Process.Signal(syscall.SIGTERM))
	if code := p.end(t); code != exitFailed || !strings.Contains(p.stderr.String(), "nothing is lost") {
		t.Errorf("exit code %d, stderr:\n%s", code, p.stderr)
	}
}

// Without addresses for its buffers OpenBLAS hangs.
func TestALimitedAddressSpace(t *testing.T) {
	p := beginIn(t, []string{"sh", "-c", `ulimit -v 3000000; exec "$0" "$@"`}, nil,
		with(small, "--stages", "4", "--threads", "8")...)
	if code := p.end(t); code != exitUsage || strings.Count(p.stderr.String(), "\n") != 1 ||
		!strings.Contains(p.stderr.String(), "may use only 2929 MiB of addresses; want ulimit -v ") {
		t.Errorf("exit code %d, stderr:\n%s", code, p.stderr)
	}
}

// A run may go on at another learning rate, for other steps and epochs, and save at others. It says so, and
// then it is the run that those settings make of the checkpoint.
func TestResumeWithChanges(t *testing.T) {
	args := with(small, "--lr-schedule", "cosine", "--out")
	first, again := filepath.Join(t.TempDir(), "out"), filepath.Join(t.TempDir(), "out")
	must(t, with(args, first, "--steps", "4")...)
	must(t, with(args, again, "--steps", "4")...)
	r := must(t, with(args, first, "--steps", "6", "--lr", "0.02", "--save-every", "1", "--resume",
		"--format", "json")...)
	want := "/step-000004; --lr 0.02 instead of 0.1; --save-every 1 instead of 0; --schedule-steps 6 " +
		"instead of 4; --steps 6 instead of 4\n"
	if !strings.Contains(r.stderr, want) {
		t.Errorf("stderr: %s; want %s", r.stderr, want)
	}
	_, done := lines(t, r.stdout)
	if same := sha(t, with(args, again, "--steps", "6", "--lr", "0.02",
		"--resume")...); same != done.ParamsSHA256 || done.Steps != 6 {
		t.Errorf("%+v; want %s", done, same)
	}
	r = must(t, with(args, first, "--steps", "7", "--epochs", "2", "--lr", "0.02", "--schedule-steps", "6",
		"--save-every", "1", "--resume")...)
	want = "/step-000006; --epochs 2 instead of 0; --steps 7 instead of 6\n"
	if !strings.Contains(r.stderr, want) {
		t.Errorf("stderr: %s; want %s", r.stderr, want)
	}
	r = must(t, with(args, first, "--steps", "7", "--epochs", "2", "--lr", "0.02", "--schedule-steps", "6",
		"--save-every", "1", "--resume")...)
	if strings.Contains(r.stderr, "instead of") {
		t.Errorf("stderr: %s", r.stderr)
	}
	for _, row := range []struct {
		args []string
		want string
	}{
		{[]string{"--steps", "9", "--warmup", "1"},
			"schedule.settings.warmup is 0 there and 1 here; resume with the saved flags and data"},
		{[]string{"--steps", "9", "--momentum", "0.5"},
			"optimizer.settings.momentum is 0.9 there and 0.5 here; resume with the saved flags and data"},
	} {
		if r := command(t, with(with(args, first, "--resume"), row.args...)...); r.code != exitUsage ||
			!strings.Contains(r.stderr, row.want) {
			t.Errorf("%q: %+v; want %q", row.args, r, row.want)
		}
	}
}

// TestResumeOfAnOldCheckpoint: testdata/run was saved by the version before recipes were read by the
// table of options. The kernels are fixed, on which bits depend.
func TestResumeOfAnOldCheckpoint(t *testing.T) {
	kernels := []string{"OPENBLAS_CORETYPE=Haswell", "OPENBLAS_L2_SIZE=512", "ATEN_CPU_CAPABILITY=avx2",
		"ONEDNN_MAX_CPU_ISA=AVX2", "DNNL_MAX_CPU_ISA=AVX2"}
	out := filepath.Join(t.TempDir(), "run")
	noerr.Do(t, os.CopyFS(out, os.DirFS("testdata/run")))
	args := []string{"train", "--config", filepath.Join("testdata", "run", "config.toml"), "--steps", "7",
		"--format", "json"}
	_, whole := lastLine(t, spawned(t, kernels, args...))
	if whole.ParamsSHA256 != "43fed2f99865c0f225d0d254c0fe8e54bbbf9ff12fcb6752b2b857977601b65a" {
		t.Skip("other kernels than those of the checkpoint")
	}
	r := spawned(t, kernels, with(args, "--out", out, "--resume")...)
	if steps, done := lastLine(t, r); steps != 4 || done.ParamsSHA256 != whole.ParamsSHA256 ||
		!strings.Contains(r.stderr, "; --save-every 0 instead of 3; --steps 7 instead of 3\n") {
		t.Errorf("%d steps, %+v, stderr:\n%s", steps, done, r.stderr)
	}
}

// lastLine returns how many lines of steps there are, and the line of the outcome.
func lastLine(t *testing.T, r ran) (steps int, done doneLine) {
	t.Helper()
	for line := range strings.Lines(r.stdout) {
		noerr.Do(t, json.Unmarshal([]byte(line), &done))
		if strings.HasPrefix(line, `{"step":`) {
			steps++
		}
	}
	return steps, done
}

// A run goes on by its directory alone, whatever flags it had. Flags of the new command line come first.
func TestResumeByTheDirectory(t *testing.T) {
	full := with(small, "--optimizer", "adamw", "--betas", "0.8,0.99", "--eps", "1e-6", "--lr-schedule",
		"one-cycle:rise=0.5", "--schedule-steps", "9", "--set", "width=16,depth=3", "--seed", "3")
	out := filepath.Join(t.TempDir(), "out")
	must(t, with(full, "--balance", "3,5", "--steps", "4", "--out", out)...)
	if got, want := sha(t, "train", "--resume", "--out", out, "--steps", "6"),
		sha(t, with(full, "--steps", "6")...); got != want {
		t.Error("other weights than without interruption")
	}
	if got, want := sha(t, "train", "--autoresume", "--out", out, "--epochs", "1", "--stages", "3"),
		sha(t, with(full, "--epochs", "1")...); got != want {
		t.Error("other weights on another cut, to the end of the epoch")
	}
	refuses(t, []string{"train", "--resume", "--out", out, "--batch", "64"}, exitUsage,
		"batch is 128 there and 64 here")
}

// Other samples are accepted if that is wanted. A tokenizer is known by its content, not by its path.
func TestResumeWithOtherData(t *testing.T) {
	rows := strings.Repeat("1,2,0\n3,1,1\n2,2,1\n0,1,0\n", 10)
	file, out := textFile(t, "rows.csv", "a,b,c\n"+rows), filepath.Join(t.TempDir(), "out")
	run := []string{"train", "--model", "mlp", "--data", "csv", "--data-dir", file, "--batch", "8", "--out",
		out}
	must(t, with(run, "--steps", "4")...)
	mustWrite(t, file, "a,b,c\n"+rows[:len(rows)-12])
	refuses(t, with(run, "--steps", "7", "--resume"), exitUsage, "accept the change with --changed-data")
	r := must(t, with(run, "--steps", "7", "--resume", "--changed-data")...)
	if !strings.Contains(r.stderr, "; other data: 34 samples instead of 36; ") {
		t.Errorf("stderr: %s", r.stderr)
	}
	mustWrite(t, file, "a,b,c\n"+rows[:len(rows)-24])
	refuses(t, []string{"train", "--out", out, "--steps", "9", "--resume"}, exitUsage, "--changed-data")

	path := noerr.Get(filepath.Abs(fixtureTokenizer))(t)
	text := []string{"train", "--model", "gpt", "--set", "depth=1,width=8,heads=2", "--data", "text",
		"--data-dir",
		textFile(t, "a.txt", strings.Repeat("hello world, ", 60)), "--window", "8", "--batch", "4", "--out",
		filepath.Join(t.TempDir(), "out"), "--data-set"}
	must(t, with(text, "tokenizer="+fixtureTokenizer, "--steps", "1")...)
	must(t, with(text, "tokenizer="+path, "--steps", "2", "--resume")...)
}
