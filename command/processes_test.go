package command

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"penstock.example/internal/draws"
	noerr "penstock.example/internal/must"
	"penstock.example/internal/proctest"
	"penstock.example/train"
)

// inThree is a training run of three stages, to be shared by up to three processes.
var inThree = with(small, "--balance", "2,2,2", "--format", "json")

// launched is a command line of launch.
func launched(processes int, training ...string) []string {
	return append([]string{"launch", "--processes", fmt.Sprint(processes), "--"}, training...)
}

// process is a run of the command in a process of its own.
type process struct {
	*exec.Cmd
	stdout, stderr *transcript
}

// transcript is what a process has written. It may be read meanwhile.
type transcript struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (w *transcript) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all.Write(p)
}

func (w *transcript) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all.String()
}

// begin starts the command. What it has started has ended when the test ends, and has left no temporary
// file, not even where it was killed.
func begin(t *testing.T, environment []string, args ...string) *process {
	t.Helper()
	return beginIn(t, nil, environment, args...)
}

// beginIn starts the command by another, which becomes it.
func beginIn(t *testing.T, by, environment []string, args ...string) *process {
	t.Helper()
	words := append(append(slices.Clone(by), os.Args[0]), args...)
	p := &process{Cmd: exec.Command(words[0], words[1:]...), stdout: &transcript{}, stderr: &transcript{}}
	temporary := t.TempDir()
	p.Env = append(append(os.Environ(), asCommand+"=1", "TMPDIR="+temporary), environment...)
	p.Stdout, p.Stderr = p.stdout, p.stderr
	p.WaitDelay = 10 * time.Second // for others that have its standard output or error
	noerr.Do(t, p.Start())
	t.Cleanup(func() {
		members := proctest.Children(p.Process.Pid)
		_ = p.Process.Kill()
		_ = p.Wait()
		for _, pid := range members {
			for range 1000 {
				if !proctest.Runs(pid) {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			if proctest.Runs(pid) {
				t.Errorf("process %d is still there", pid)
			}
		}
		if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
			t.Errorf("%v, %v is left in the folder for temporary files", left, err)
		}
	})
	return p
}

// after waits until the process has taken a step.
func (p *process) after(t *testing.T, step int) {
	t.Helper()
	want := fmt.Sprintf(`{"step":%d,`, step)
	defer proctest.Watch(t, p.Cmd, proctest.Limit)()
	for ; !strings.Contains(p.stdout.String(), want); time.Sleep(5 * time.Millisecond) {
		if !proctest.Runs(p.Process.Pid) {
			t.Fatalf("no step %d; stdout:\n%s\nstderr:\n%s", step, p.stdout, p.stderr)
		}
	}
}

// end waits for the end of the process and returns its exit code. A process that hangs ends the test,
// which shows where.
func (p *process) end(t *testing.T) int {
	t.Helper()
	code, ended := p.endWithin(t, proctest.Limit)
	if !ended {
		t.Fatalf("stdout:\n%s\nstderr:\n%s", p.stdout, p.stderr)
	}
	return code
}

// endWithin reports whether the process has ended by itself, and its exit code.
func (p *process) endWithin(t testing.TB, limit time.Duration) (code int, ended bool) {
	t.Helper()
	stop := proctest.Watch(t, p.Cmd, limit)
	err := p.Wait()
	ended = !stop()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return p.ProcessState.ExitCode(), ended
}

// spawned runs a command line that is to succeed in a process of its own, with more variables in its
// environment.
func spawned(t *testing.T, variables []string, args ...string) ran {
	t.Helper()
	p := begin(t, variables, args...)
	if code := p.end(t); code != exitDone {
		t.Fatalf("%v %q: exit code %d, stderr:\n%s", variables, args, code, p.stderr)
	}
	return ran{exitDone, p.stdout.String(), p.stderr.String()}
}

// mustTrain runs a training that is to succeed: in this process, or in those that launch starts.
func mustTrain(t *testing.T, args ...string) ran {
	t.Helper()
	if args[0] != "launch" {
		return must(t, args...)
	}
	return spawned(t, nil, args...)
}

// member is the process with a rank, of those that a launcher starts.
func (p *process) member(t *testing.T, rank int) int {
	t.Helper()
	for until := time.Now().Add(proctest.Limit); time.Now().Before(until); time.Sleep(time.Millisecond) {
		for _, pid := range proctest.Children(p.Process.Pid) {
			environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
			if err == nil && bytes.Contains(environment, fmt.Appendf(nil, "\x00RANK=%d\x00", rank)) {
				return pid
			}
		}
	}
	t.Fatalf("there is no process of rank %d; stderr:\n%s", rank, p.stderr)
	return 0
}

// waits are the lines that are written where a wait takes long, which depends on what else the machine does.
var waits = regexp.MustCompile(`(?m)^(\[\d+\] )?(time=\S+ level=INFO msg="group: .*)\n`)

// words are what the process has written to standard error, without a word of waits.
func (p *process) words() string { return waits.ReplaceAllString(p.stderr.String(), "") }

// said is what a rank has written to standard error, without its prefix and without a word of waits.
func (p *process) said(rank int) string {
	var b strings.Builder
	for line := range strings.Lines(p.words()) {
		if rest, ok := strings.CutPrefix(line, fmt.Sprintf("[%d] ", rank)); ok {
			b.WriteString(rest)
		}
	}
	return b.String()
}

// Rank 0's standard output is what one process prints, and the weights are its weights.
func TestProcessesTrainAsOne(t *testing.T) {
	args := with(inThree, "--steps", "4", "--clip-norm", "0.5")
	_, want := lines(t, must(t, args...).stdout)
	other := with(args, "--schedule", "1f1b", "--checkpoint", "always")
	runs := [][]string{
		launched(3, other...),
		// measured and cut
		launched(2, "train", "--model", "mlp", "--data", "synthetic", "--batch", "128", "--chunks", "4",
			"--format", "json", "--steps", "4", "--clip-norm", "0.5"),
	}
	if draws.Full {
		runs = append(runs, launched(1, args...), launched(2, args...), launched(3, args...),
			launched(2, other...))
	}
	for _, run := range runs {
		p := begin(t, nil, run...)
		if code := p.end(t); code != exitDone {
			t.Fatalf("%q: exit code %d, stderr:\n%s", run, code, p.stderr)
		}
		steps, done := lines(t, p.stdout.String())
		if len(steps) != 4 || done.ParamsSHA256 != want.ParamsSHA256 ||
			*done.TestAccuracy != *want.TestAccuracy ||
			min(len(steps[0].PeakBytes), len(done.SafeLimitBytes)) < 2 {
			t.Errorf("%q: got %d steps, %+v; want %+v", run, len(steps), done, want)
		}
		for _, line := range strings.Split(p.words(), "\n") {
			if line != "" && !strings.HasPrefix(line, "[0] ") {
				t.Errorf("%q: stderr has %q", run, line)
			}
		}
	}
}

// Without a launcher processes say themselves which they are.
func TestProcessesStartedByHand(t *testing.T) {
	args := with(inThree, "--steps", "2", "--processes", "2", "--rendezvous", proctest.Address(t))
	one, zero := begin(t, []string{token + "=a"}, with(args, "--rank", "1")...),
		begin(t, []string{token + "=a"}, with(args, "--rank", "0")...)
	if a, b := zero.end(t), one.end(t); a != exitDone || b != exitDone {
		t.Fatalf("exit codes %d and %d, stderr:\n%s\n%s", a, b, zero.stderr, one.stderr)
	}
	if _, done := lines(t, zero.stdout.String()); done.ParamsSHA256 != sha(t,
		with(small, "--steps", "2")...) || one.stdout.String() != "" || one.words() != "" {
		t.Errorf("rank 0 wrote %s; rank 1 wrote %q and %q", zero.stdout, one.stdout, one.stderr)
	}
}

// All finish the step together and save; going on gives the bits of a run that was not cut short. The signal
// goes to the launcher and to its processes, as Slurm sends it.
func TestASignalToALauncher(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	p := begin(t, nil, launched(3, with(inThree, "--steps", "1000000", "--out", out)...)...)
	p.after(t, 2)
	for _, pid := range append(proctest.Children(p.Process.Pid), p.Process.Pid) {
		noerr.Do(t, syscall.Kill(pid, syscall.SIGUSR1))
	}
	code := p.end(t)
	steps, err := train.Store{Dir: out}.Steps()
	if code != exitFailed || err != nil || len(steps) != 1 {
		t.Fatalf("exit code %d, checkpoints of %v, %v; stderr:\n%s", code, steps, err, p.stderr)
	}
	told := fmt.Sprintf("penstock: interrupted after step %d; saved in %s/step-", steps[0], out)
	for rank := range 3 {
		if got := p.said(rank); !strings.HasPrefix(strings.TrimPrefix(got,
			"\nfinishing the step; Ctrl-C again ends at once\n"), told) ||
			strings.Contains(got, goOn) != (rank == 0) {
			t.Errorf("rank %d says %q", rank, got)
		}
	}
	wantGoesOn(t, out, steps[0]+2, 2)
}

// wantGoesOn resumes a run in so many processes up to a step, and compares the weights with those of
// a run that was not cut short.
func wantGoesOn(t *testing.T, out string, to int64, processes int) {
	t.Helper()
	args := with(inThree, "--steps", fmt.Sprint(to))
	r := mustTrain(t, launched(processes, with(args, "--out", out, "--resume")...)...)
	if _, done := lines(t, r.stdout); done.Steps != to ||
		done.ParamsSHA256 != sha(t, with(small, "--steps", fmt.Sprint(to))...) {
		t.Errorf("going on to step %d: %+v: other weights than without a failure", to, done)
	}
}

// interruptAgain interrupts a process, whose step never ends, until it has ended.
func interruptAgain(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	defer proctest.Watch(t, cmd, proctest.Limit)()
	for proctest.Runs(cmd.Process.Pid) && cmd.Process.Signal(os.Interrupt) == nil {
		time.Sleep(20 * time.Millisecond)
	}
}

// A second signal ends all at once: the launcher dies, and nothing outlives it.
func TestASecondSignalToALauncher(t *testing.T) {
	p := begin(t, []string{endless + "=1"}, launched(2, inThree...)...)
	p.after(t, 1)
	members := proctest.Children(p.Process.Pid)
	interruptAgain(t, p.Cmd)
	if p.end(t); p.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGINT || len(members) != 2 {
		t.Errorf("%v, of processes %v; stderr:\n%s", p.ProcessState, members, p.stderr)
	}
}

// A process that dies or is stopped ends the others, which name it; what was saved is there. Where it
// dies there is no heartbeat for minutes: its closed connections alone are noticed. The launcher would
// end the others some seconds later, without a word of it.
func TestALostProcess(t *testing.T) {
	for _, row := range []struct {
		signal  syscall.Signal
		rank    int
		silence string
		why     string
	}{{syscall.SIGKILL, 1, "20m", "connection"}, {syscall.SIGSTOP, 2, "3s",
		"nothing was heard of it for 3s"}} {
		out := filepath.Join(t.TempDir(), "out")
		p := begin(t, nil, launched(3, with(inThree, "--steps", "1000000", "--out", out, "--save-every",
			"3", "--silence", row.silence)...)...)
		p.after(t, 4)
		var others []int
		for rank := range 3 {
			if rank != row.rank {
				others = append(others, p.member(t, rank))
			}
		}
		noerr.Do(t, syscall.Kill(p.member(t, row.rank), row.signal))
		began := time.Now()
		for slices.ContainsFunc(others, proctest.Runs) && time.Since(began) < proctest.Limit {
			time.Sleep(time.Millisecond)
		}
		took := time.Since(began)
		if silent := row.signal == syscall.SIGSTOP; slices.ContainsFunc(others, proctest.Runs) || silent &&
			took < time.Second {
			t.Fatalf("%v to rank %d: the others run %v, after %v", row.signal, row.rank,
				slices.ContainsFunc(others, proctest.Runs), took)
		}
		if code := p.end(t); code != exitFailed {
			t.Errorf("%v to rank %d: exit code %d", row.signal, row.rank, code)
		}
		for rank := range 3 {
			said := p.said(rank)
			if want := fmt.Sprintf("rank %d is lost: ", row.rank); rank != row.rank &&
				!(strings.Count(said, want) == 1 && strings.Contains(said, row.why)) {
				t.Errorf("%v to rank %d: rank %d says %q, without %q and %q", row.signal, row.rank, rank,
					said, want, row.why)
			}
		}
		if saved := lastStep(t, out); row.signal == syscall.SIGKILL || draws.Full {
			wantGoesOn(t, out, saved+2, 1+row.rank)
		}
	}
}

// lastStep is the step of the newest checkpoint, which has to be whole.
func lastStep(t *testing.T, out string) int64 {
	t.Helper()
	return noerr.Get(train.Store{Dir: out}.Latest())(t).Step
}

// Processes are killed at random moments: while they start, meet, train, save and load. After each
// kill the launcher starts all again, and the weights are in the end those of a run without kills. No
// silence is waited for, which would take more than the minutes that a start may take here.
func TestKills(t *testing.T) {
	kills := 3
	if draws.Full {
		kills = 10
	}
	out := filepath.Join(t.TempDir(), "out")
	args := with(inThree, "--steps", "1000000", "--out", out, "--save-every", "1", "--silence", "20m")
	p := begin(t, nil, append([]string{"launch", "--processes", "3", "--restarts", fmt.Sprint(kills), "--"},
		args...)...)
	steps := func() int { return strings.Count(p.stdout.String(), "\n") }
	await := func(what string, done func() bool) {
		for until := time.Now().Add(proctest.Limit); !done(); time.Sleep(time.Millisecond) {
			if time.Now().After(until) || !proctest.Runs(p.Process.Pid) {
				t.Fatalf("no %s; stderr:\n%s", what, p.stderr)
			}
		}
	}
	for kill := range kills {
		before, moment := steps(), rand.N(2*time.Second)
		if rand.IntN(2) == 0 { // in a step, or while it is saved
			await("step", func() bool { return steps() > before })
			moment /= 10
		}
		time.Sleep(moment)
		rank := rand.IntN(3)
		noerr.Do(t, syscall.Kill(p.member(t, rank), syscall.SIGKILL))
		again := fmt.Sprintf("restart %d of %d\n", kill+1, kills)
		await(again, func() bool { return strings.Contains(p.stderr.String(), again) })
		for line := range strings.Lines(p.stderr.String()) {
			if strings.HasSuffix(line, again) &&
				!strings.Contains(line, fmt.Sprintf("rank %d was ended by signal 9 (killed)", rank)) {
				t.Errorf("kill %d, of rank %d after %v: %s", kill, rank, moment, line)
			}
		}
	}
	before := steps()
	await("step after the kills", func() bool { return steps() >= before+2 })
	noerr.Do(t, p.Process.Signal(os.Interrupt))
	if code := p.end(t); code != exitFailed || !strings.Contains(p.said(0), "interrupted after step ") {
		t.Fatalf("exit code %d, stderr:\n%s", code, p.stderr)
	}
	wantGoesOn(t, out, lastStep(t, out)+1, 2)
	if left, err := filepath.Glob(filepath.Join(out, ".*")); err != nil || len(left) > 0 {
		t.Errorf("%v, %v is left in --out", left, err)
	}
}

// A process waits for the others for as long as it is told, and says who has not come.
func TestAProcessThatDoesNotCome(t *testing.T) {
	for rank, want := range []string{"rank 1 of 2 did not come to 127.0.0.1:",
		"rank 1 of 2 calls rank 0 at "} {
		r := command(t, with(inThree, "--processes", "2", "--rank", fmt.Sprint(rank), "--rendezvous",
			proctest.Address(t), "--join-timeout", "1s")...)
		if r.code != exitFailed || !strings.Contains(r.stderr, want) ||
			!strings.Contains(r.stderr, "more time (--join-timeout)") {
			t.Errorf("rank %d: exit code %d, stderr %q; want %s", rank, r.code, r.stderr, want)
		}
	}
}

// Processes with other flags all say who differs in what.
func TestProcessesThatDiffer(t *testing.T) {
	address := proctest.Address(t)
	start := func(rank int, more ...string) *process {
		return begin(t, []string{token + "=a"},
			with(with(inThree, "--steps", "2", "--processes", "3", "--rendezvous", address, "--rank",
				fmt.Sprint(rank)), more...)...)
	}
	for rank, p := range []*process{start(0), start(1, "--seed", "7", "--momentum", "0"), start(2)} {
		if code := p.end(t); code != exitUsage || p.stdout.String() != "" ||
			!strings.Contains(p.stderr.String(), "rank 1 has --seed 7, rank 0 has none") ||
			!strings.Contains(p.stderr.String(), "rank 1 has --momentum 0, rank 0 has none") {
			t.Errorf("rank %d: exit code %d, stdout %q, stderr %q", rank, code, p.stdout, p.stderr)
		}
	}
}

// What is not there on one process's machine is said on all.
func TestDataThatOneProcessLacks(t *testing.T) {
	address := proctest.Address(t)
	file := filepath.Join(t.TempDir(), "text")
	mustWrite(t, file, strings.Repeat("a text. ", 1000))
	args := []string{"train", "--model", "gpt", "--data", "text", "--batch", "4", "--chunks", "2",
		"--steps", "1", "--processes", "2", "--rendezvous", address}
	zero, one := begin(t, nil, with(args, "--rank", "0", "--data-dir", file)...),
		begin(t, nil, with(args, "--rank", "1", "--data-dir", file+"-not")...)
	if code := one.end(t); code != exitUsage || !strings.Contains(one.stderr.String(), "no such file") {
		t.Errorf("rank 1: exit code %d, stderr %q", code, one.stderr)
	}
	if code := zero.end(t); code != exitUsage || !strings.Contains(zero.stderr.String(), "rank 1 failed: ") ||
		!strings.Contains(zero.stderr.String(), "no such file") {
		t.Errorf("rank 0: exit code %d, stderr %q", code, zero.stderr)
	}
}

// A limit that one stage exceeds is a refused command line for all processes.
func TestALimitThatOneProcessExceeds(t *testing.T) {
	args := with(small, "--balance", "5,1", "--memory-limit", "400KiB", "--processes", "2", "--rendezvous",
		proctest.Address(t), "--rank")
	for rank, p := range []*process{begin(t, nil, with(args, "0")...), begin(t, nil, with(args, "1")...)} {
		if code := p.end(t); code != exitUsage ||
			!strings.Contains(p.stderr.String(), "stage 0 on cpu:0 needs ") {
			t.Errorf("rank %d: exit code %d, stderr %q", rank, code, p.stderr)
		}
	}
}
