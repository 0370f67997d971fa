package launch_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"penstock.example/internal/launch"
	"penstock.example/internal/must"
	"penstock.example/internal/proctest"
)

// asProcess in the environment makes this test binary a process of a job, which does what it says.
const asProcess = "PENSTOCK_TEST_PROCESS"

// forever is how long a process of these tests lives that nobody ends.
const forever = time.Minute

func TestMain(m *testing.M) {
	what, word, _ := strings.Cut(os.Getenv(asProcess), " ")
	terminated := make(chan os.Signal, 1)
	switch what {
	case "":
		os.Exit(m.Run())
	case "exit":
		code, _ := strconv.Atoi(word)
		os.Exit(code)
	case "wait":
		fmt.Println("there")
		time.Sleep(forever)
	case "silent":
		time.Sleep(forever)
	case "stubborn": // ignores SIGTERM
		signal.Ignore(syscall.SIGTERM)
		time.Sleep(forever)
	case "orderly": // says that it was asked to end, and takes longer than the hasty of three
		signal.Notify(terminated, syscall.SIGTERM)
		fmt.Fprintln(os.Stderr, "there")
		<-terminated
		for len(proctest.Children(os.Getppid())) == 3 {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(100 * time.Millisecond)
		fmt.Fprintln(os.Stderr, "saved")
		os.Exit(1)
	case "hasty": // as orderly, at once
		signal.Notify(terminated, syscall.SIGTERM)
		fmt.Fprintln(os.Stderr, "there")
		<-terminated
		os.Exit(1)
	case "loses": // fails by itself a moment after the other has
		time.Sleep(100 * time.Millisecond)
		fmt.Fprintln(os.Stderr, "lost the other")
		os.Exit(1)
	case "refused": // and tells the others first
		time.Sleep(100 * time.Millisecond)
		os.Exit(launch.Usage)
	case "dies": // a moment after the other has noticed that it will
		time.Sleep(100 * time.Millisecond)
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		time.Sleep(forever)
	case "write":
		fmt.Print("a\x00b\nno end")
		fmt.Fprint(os.Stderr, "one\ntw")
		fmt.Fprint(os.Stderr, "o\nthe end")
	case "much":
		for range 200 {
			fmt.Println(strings.Repeat(word, 500))
		}
	case "crash":
		panic("a bug")
	case "signal": // to itself
		number, _ := strconv.Atoi(word)
		_ = syscall.Kill(os.Getpid(), syscall.Signal(number))
		time.Sleep(forever)
	case "counts": // fails, with 10 and the number of the restart, until the restart that it is told
		if restart := os.Getenv("TORCHELASTIC_RESTART_COUNT"); restart != word {
			n, _ := strconv.Atoi(restart)
			os.Exit(10 + n)
		}
	case "group":
		fmt.Println(syscall.Getpgrp() == syscall.Getpid())
	case "job": // is a launcher itself
		_ = job(os.Stdout, os.Stdout, "wait", "wait").Run(context.Background())
	}
	os.Exit(0)
}

// job is a job of processes that do what is said.
func job(stdout, stderr io.Writer, whats ...string) launch.Job {
	j := launch.Job{Path: os.Args[0], Stdout: stdout, Stderr: stderr, Settle: forever, Grace: forever}
	for _, what := range whats {
		j.Env = append(j.Env, append(os.Environ(), asProcess+"="+what))
	}
	return j
}

// failure is the failure of a run, which must be one.
func failure(t *testing.T, err error) *launch.Failure {
	t.Helper()
	var f *launch.Failure
	if !errors.As(err, &f) {
		t.Fatalf("got %v, want a Failure", err)
	}
	return f
}

func TestOutputIsTheFirstOnesAndTheRestIsPrefixed(t *testing.T) {
	var stdout, stderr bytes.Buffer
	must.Do(t, job(&stdout, &stderr, "write", "write", "group").Run(t.Context()))
	if got := stdout.String(); got != "a\x00b\nno end" {
		t.Errorf("stdout is %q", got)
	}
	lines := strings.Split(strings.TrimSuffix(stderr.String(), "\n"), "\n")
	slices.Sort(lines)
	want := []string{"[0] one", "[0] the end", "[0] two", "[1] a\x00b", "[1] no endone", "[1] two",
		"[1] the end", "[2] true"}
	slices.Sort(want)
	if !slices.Equal(lines, want) {
		t.Errorf("stderr has\n%q, want\n%q", lines, want)
	}
}

func TestLinesOfProcessesAreWhole(t *testing.T) {
	var stderr bytes.Buffer
	must.Do(t, job(io.Discard, &stderr, "write", "much a", "much b").Run(t.Context()))
	counts := map[byte]int{}
	for line := range strings.Lines(stderr.String()) {
		if line[1] == '0' {
			continue
		}
		c := line[4]
		if want := fmt.Sprintf("[%d] %s\n", 1+c-'a', strings.Repeat(string(c), 500)); line != want {
			t.Fatalf("a line is %q", line)
		}
		counts[c]++
	}
	if counts['a'] != 200 || counts['b'] != 200 {
		t.Errorf("lines: %v, want 200 of each", counts)
	}
}

// The first failure ends all. One that was killed, crashed or refused is told before others that exit
// for that reason, but not one that the launcher has ended.
func TestTheFailureThatIsTold(t *testing.T) {
	t.Setenv("GOTRACEBACK", "")
	os.Unsetenv("GOTRACEBACK")
	for _, row := range []struct {
		whats         []string
		settle, grace time.Duration
		rank, code    int
		signal        syscall.Signal
		text          string
	}{
		{[]string{"wait", "exit 3", "wait"}, time.Millisecond, forever, 1, 3, 0,
			"rank 1 exited with 3 after "},
		{[]string{"stubborn", "exit 2"}, time.Millisecond, 300 * time.Millisecond, 1, 2, 0, ""},
		{[]string{"exit 1", "dies", "exit 1"}, forever, forever, 1, -1, syscall.SIGKILL,
			"was ended by signal 9 (killed)"},
		{[]string{"exit 1", "silent"}, time.Millisecond, forever, 0, 1, 0, ""},
		{[]string{"exit 1", "refused", "exit 1"}, forever, forever, 1, launch.Usage, 0, ""},
		{[]string{"crash"}, forever, forever, 0, -1, syscall.SIGABRT, ""}, // a crash is no refusal
		{[]string{"signal 11"}, forever, forever, 0, -1, syscall.SIGSEGV,
			"was ended by signal 11 (segmentation fault)"},
	} {
		j := job(io.Discard, io.Discard, row.whats...)
		j.Settle, j.Grace = row.settle, row.grace
		f := failure(t, j.Run(t.Context()))
		if f.Rank != row.rank || f.Code != row.code || f.Signal != row.signal ||
			!strings.Contains(f.Error(), row.text) {
			t.Errorf("%q: got %+v", row.whats, f)
		}
	}
	t.Setenv("GOTRACEBACK", "single") // counts
	if f := failure(t, job(io.Discard, io.Discard, "crash").Run(t.Context())); f.Code != 2 {
		t.Errorf("got %+v", f)
	}
}

// A process that is stopped goes on to see that it is to end.
func TestAStoppedProcessEndsInOrder(t *testing.T) {
	r, w := io.Pipe()
	j := job(io.Discard, w, "orderly", "silent")
	j.Settle = time.Millisecond
	done := make(chan error, 1)
	go func() { done <- j.Run(t.Context()); w.Close() }()
	lines := bufio.NewScanner(r)
	if !lines.Scan() {
		t.Fatal("the process is not there")
	}
	pids := proctest.Children(os.Getpid())
	if len(pids) != 2 {
		t.Fatalf("processes %v, want 2", pids)
	}
	for i, s := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGTERM} {
		must.Do(t, syscall.Kill(slices.Sorted(slices.Values(pids))[i], s))
	}
	if !lines.Scan() || lines.Text() != "[0] saved" {
		t.Errorf("got %q", lines.Text())
	}
	if f := failure(t, <-done); f.Rank != 1 {
		t.Errorf("got %+v", f)
	}
}

func TestOthersMaySayWhatTheyMiss(t *testing.T) {
	var stderr bytes.Buffer
	if f := failure(t, job(io.Discard, &stderr, "loses", "exit 2").Run(t.Context())); f.Rank != 1 {
		t.Errorf("got %+v", f)
	}
	if got := stderr.String(); got != "[0] lost the other\n" {
		t.Errorf("stderr is %q", got)
	}
}

// A job is started again after a failure until it succeeds, or has no restart left, or is refused. The
// crashes of a Go program, by a panic or a signal, are failures: without GOTRACEBACK=crash it exits with 2.
func TestRestarts(t *testing.T) {
	t.Setenv("GOTRACEBACK", "none")
	type row struct {
		what string
		want []int // codes of the failures before each restart
		code int   // of the last failure
	}
	rows := []row{{"counts 2", []int{10, 11}, 0}, {"exit 7", []int{7, 7, 7}, 7},
		{fmt.Sprint("exit ", launch.Usage), nil, launch.Usage}, {"exit 0", nil, 0},
		{"crash", []int{2, 2, 2}, 2}}
	for _, s := range []syscall.Signal{syscall.SIGSEGV, syscall.SIGABRT, syscall.SIGBUS, syscall.SIGILL,
		syscall.SIGFPE, syscall.SIGQUIT, syscall.SIGTRAP} {
		rows = append(rows, row{fmt.Sprint("signal ", int(s)), []int{2, 2, 2}, 2})
	}
	for _, row := range rows {
		j := job(io.Discard, io.Discard, row.what)
		var got []int
		j.Restarts, j.OnRestart = 3, func(restart int, after *launch.Failure) {
			if got = append(got, after.Code); restart != len(got) {
				t.Errorf("%s: restart %d is told as %d", row.what, len(got), restart)
			}
		}
		err := j.Run(t.Context())
		code := 0
		if err != nil {
			code = failure(t, err).Code
		}
		if code != row.code || !slices.Equal(got, row.want) ||
			(code == launch.Usage) != (err != nil && strings.HasSuffix(err.Error(), "refused again")) {
			t.Errorf("%s: %v after failures with %v; want %d after %v", row.what, err, got, row.code, row.want)
		}
	}
}

// All are asked to end, and each takes the time that it needs: one may still be saving.
func TestInterruptedJobsEndInOrder(t *testing.T) {
	r, w := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	j := job(io.Discard, w, "orderly", "hasty", "orderly")
	j.Settle, j.Grace = time.Millisecond, time.Millisecond
	done := make(chan error, 1)
	go func() { done <- j.Run(ctx); w.Close() }()
	there, saved := 0, 0
	for lines := bufio.NewScanner(r); lines.Scan(); {
		switch _, what, _ := strings.Cut(lines.Text(), "] "); what {
		case "there":
			if there++; there == 3 {
				cancel()
			}
		case "saved":
			saved++
		}
	}
	if f := failure(t, <-done); there != 3 || saved != 2 || f.Rank != 1 {
		t.Errorf("%d were there, %d have saved, first ended %+v", there, saved, f)
	}
}

func TestAProgramThatIsNotThere(t *testing.T) {
	j := job(io.Discard, io.Discard, "wait", "wait")
	j.Path = "/nonexistent"
	if f := failure(t, j.Run(t.Context())); f.Rank != 0 || !errors.Is(f, os.ErrNotExist) {
		t.Errorf("got %+v", f)
	}
}

// A launcher that is killed can end nothing itself: the system does.
func TestNothingOutlivesTheLauncher(t *testing.T) {
	launcher := exec.Command(os.Args[0])
	launcher.Env = append(os.Environ(), asProcess+"=job")
	out := must.Get(launcher.StdoutPipe())(t)
	must.Do(t, launcher.Start())
	lines := bufio.NewScanner(out)
	for range 2 {
		if !lines.Scan() {
			t.Fatal("the processes did not start")
		}
	}
	pids := proctest.Children(launcher.Process.Pid)
	if len(pids) != 2 {
		t.Fatalf("processes %v, want 2", pids)
	}
	must.Do(t, launcher.Process.Kill())
	_ = launcher.Wait()
	for _, pid := range pids {
		gone := false
		for range 500 {
			if gone = !proctest.Runs(pid); gone {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if !gone {
			t.Errorf("process %d is still there", pid)
		}
	}
}

// Of all that ask for a port only the one that names it gets a port that is kept.
func TestAPortThatIsKept(t *testing.T) {
	p := must.Get(launch.KeepPort())(t)
	port := fmt.Sprint(":", p.Number)
	kept := "127.0.0.1" + port
	if _, err := net.Dial("tcp", kept); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("calling it before anybody listens: %v", err)
	}
	for _, address := range []string{kept, port} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatalf("listening at %s: %v", address, err)
		}
		c := must.Get(net.Dial("tcp", kept))(t)
		_, _ = c.Close(), l.Close()
	}
	// Those that ask for any port take many. Before, about one in seven got this one.
	var all []net.Listener
	for range 2000 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			break // more files than a process may have open
		}
		all = append(all, l)
		if l.Addr().String() == kept {
			t.Error("it was given to somebody else")
		}
	}
	for _, l := range all {
		_ = l.Close()
	}
	must.Do(t, p.Release())
}
