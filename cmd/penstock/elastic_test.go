package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"penstock.example/internal/proctest"
	"penstock.example/train"
)

// changesVariable sets how often the tests of elastic runs change the number of processes:
//
//	PENSTOCK_CHANGES=50 go test ./cmd/penstock -run 'Changes' -v -timeout 1h
const changesVariable = "PENSTOCK_CHANGES"

// changes is that number, and the source of what is random.
func changes(t *testing.T) (int, *rand.Rand) {
	t.Helper()
	n := 3
	if text := os.Getenv(changesVariable); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	return n, randomMoments(t)
}

// another is a number from 1 to 4 that is not n.
func another(random *rand.Rand, n int) int { return (n+random.IntN(3))%4 + 1 }

// startAs starts the processes of a run with the variables that torchrun gives them at a restart.
func startAs(t *testing.T, n, restart int, args ...string) (all []*process) {
	t.Helper()
	host, port, _ := strings.Cut(proctest.Address(t), ":")
	for rank := range n {
		all = append(all, begin(t, []string{fmt.Sprintf("WORLD_SIZE=%d", n), fmt.Sprintf("RANK=%d", rank), fmt.Sprintf("LOCAL_RANK=%d", rank),
			"MASTER_ADDR=" + host, "MASTER_PORT=" + port, fmt.Sprintf("TORCHELASTIC_RESTART_COUNT=%d", restart)}, args...))
	}
	return all
}

// newest is the step of the newest checkpoint, all of whose files are whole, or 0.
func newest(t *testing.T, out string) int64 {
	t.Helper()
	if there, err := filepath.Glob(filepath.Join(out, "step-*")); err != nil || len(there) == 0 {
		return 0
	}
	return lastStep(t, out)
}

// torchrun starts the processes of a job again after a failure, with another number of them if
// machines have gone or come. Each start goes on from the newest checkpoint, says what has changed, and in
// the end the weights are those of a run without changes.
func TestChangesByTorchrun(t *testing.T) {
	full(t)
	changes, random := changes(t)
	for name, cut := range map[string][]string{"stages follow the processes": nil, "stages stay": {"--balance", "2,1,1,2"}} {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out")
			args := with(with(small, "--format", "json", "--out", out, "--save-every", "1"), cut...)
			n, saved, before := another(random, 0), int64(0), 0
			for restart := range changes {
				all := startAs(t, n, restart, with(args, "--steps", "1000000")...)
				moment := time.Duration(random.Int64N(int64(time.Second)))
				if random.IntN(3) > 0 { // in a step, or while it is saved
					all[0].after(t, int(saved)+1)
				}
				time.Sleep(moment)
				if err := all[random.IntN(n)].Process.Signal(syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				time.Sleep(moment / 10)
				for _, p := range all { // the agent ends the others; some may still wait for the one that was killed
					_ = p.Process.Signal(syscall.SIGTERM)
				}
				for _, p := range all {
					p.end(t)
				}
				wantResumed(t, all[0], out, saved, n, before)
				if now := newest(t, out); now > saved { // the one before is of an earlier start
					saved, before = now, n
				}
				n = another(random, before)
			}
			all := startAs(t, n, changes, with(args, "--steps", fmt.Sprint(saved+2))...)
			for rank, p := range all {
				if code := p.end(t); code != exitDone {
					t.Fatalf("rank %d of %d: exit code %d, stderr:\n%s", rank, n, code, p.stderr)
				}
			}
			wantResumed(t, all[0], out, saved, n, before)
			_, done := lines(t, all[0].stdout.String())
			if done.ParamsSHA256 != sha(t, with(small, "--steps", fmt.Sprint(saved+2))...) {
				t.Errorf("after %d changes, at step %d: other weights than without", changes, saved+2)
			}
			t.Logf("%d changes; the run is at step %d", changes, saved+2)
		})
	}
}

// wantResumed checks that a start, if it has come so far, goes on from the checkpoint of a step, and says
// how the number of processes has changed.
func wantResumed(t *testing.T, first *process, out string, saved int64, n, before int) {
	t.Helper()
	text, _, stepped := strings.Cut(first.stdout.String(), "\n")
	if !stepped {
		return
	}
	if !strings.HasPrefix(text, fmt.Sprintf(`{"step":%d,`, saved+1)) {
		t.Errorf("%d processes after %d begin with %s; want step %d", n, before, text, saved+1)
	}
	if saved == 0 {
		return
	}
	want := fmt.Sprintf("going on from %s with %s instead of %d", train.Store{Dir: out}.Path(saved), counted(n, "process"), before)
	if said := first.stderr.String(); !strings.Contains(said, want) {
		t.Errorf("%d processes after %d at step %d say %q, without %q", n, before, saved, said, want)
	}
}
