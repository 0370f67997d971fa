package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
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
	host, port, _ := strings.Cut(proctest.AddressOfTwo(t), ":")
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

// elastic is a run on up to four nodes, each with a launcher on this machine and one process.
type elastic struct {
	t         *testing.T
	args      []string
	launchers map[int]*process // by node; node 0's is always there
}

func (e *elastic) launch(node int) {
	e.launchers[node] = begin(e.t, []string{token + "=a"}, with([]string{"launch", "--node-rank", fmt.Sprint(node)}, e.args...)...)
}

// wait waits until node 0 says that the run was started on so many nodes after what it has said
// before, and returns all that it has said.
func (e *elastic) wait(nodes int, before string) string {
	e.t.Helper()
	want := fmt.Sprintf(", %s\n", processes(nodes))
	defer proctest.Watch(e.t, e.launchers[0].Cmd, proctest.Limit)()
	for ; ; time.Sleep(time.Millisecond) {
		all := e.launchers[0].stderr.String()
		last := ""
		for line := range strings.Lines(all[len(before):]) {
			if strings.HasPrefix(line, "penstock: starting on node") {
				last = line
			}
		}
		if strings.HasSuffix(last, want) {
			return all
		}
		if !proctest.Runs(e.launchers[0].Process.Pid) {
			e.t.Fatalf("no start on %d nodes after\n%s\nbut\n%s", nodes, before, all[len(before):])
		}
	}
}

// Machines go and come at random moments: while processes start, meet, train, save and load. The run goes on
// with those that are there, no step that was saved is lost, and the weights are in the end those of
// a run without changes.
func TestChanges(t *testing.T) {
	full(t)
	changes, random := changes(t)
	out := filepath.Join(t.TempDir(), "out")
	e := &elastic{t, with([]string{"--nodes", "1:4", "--rendezvous", proctest.AddressOfTwo(t), "--wait", "1s", "--restarts", "1000000", "--"},
		with(small, "--format", "json", "--out", out, "--save-every", "1", "--steps", "1000000")...), map[int]*process{}}
	n := another(random, 0)
	for node := range n {
		e.launch(node)
	}
	said, counts := e.wait(n, ""), map[int]int{n: 1}
	steps := func() int { return strings.Count(e.launchers[0].stdout.String(), "\n") }
	for range changes {
		moment := time.Duration(random.Int64N(int64(2 * time.Second)))
		if before := steps(); random.IntN(2) == 0 { // in a step, or while it is saved
			for until := time.Now().Add(proctest.Limit); steps() == before && time.Now().Before(until); {
				time.Sleep(time.Millisecond)
			}
			moment /= 10
		}
		time.Sleep(moment)
		if n = another(random, n); random.IntN(4) == 0 { // a process fails while machines go or come
			_ = syscall.Kill(e.launchers[0].member(t, 0), syscall.SIGKILL)
		}
		for len(e.launchers) > n {
			if node := 1 + random.IntN(3); e.launchers[node] != nil {
				_ = e.launchers[node].Process.Kill()
				e.launchers[node].end(t)
				delete(e.launchers, node)
			}
		}
		for len(e.launchers) < n {
			if node := 1 + random.IntN(3); e.launchers[node] == nil {
				e.launch(node)
			}
		}
		said = e.wait(n, said)
		counts[n]++
	}
	for until, before := time.Now().Add(proctest.Limit), steps(); steps() < before+2; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("no step after %d changes; stderr:\n%s", changes, e.launchers[0].stderr)
		}
	}
	if err := e.launchers[0].Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	for node, p := range e.launchers {
		if code := p.end(t); code != exitFailed {
			t.Errorf("node %d: exit code %d, stderr:\n%s", node, code, p.stderr)
		}
	}
	var last int64
	for line := range strings.Lines(e.launchers[0].stdout.String()) {
		var s stepLine
		if err := json.Unmarshal([]byte(line), &s); err != nil || s.Step != last+1 && s.Step != last { // which may not have been saved
			t.Errorf("%s follows step %d: %v", line, last, err)
		}
		last = s.Step
	}
	saved := lastStep(t, out)
	if saved != last {
		t.Errorf("the newest checkpoint is of step %d, after step %d", saved, last)
	}
	to := fmt.Sprint(saved + 1)
	r := must(t, with(small, "--format", "json", "--out", out, "--resume", "--steps", to)...)
	if _, done := lines(t, r.stdout); done.ParamsSHA256 != sha(t, with(small, "--steps", to)...) {
		t.Errorf("after %d changes, at step %s: other weights than without", changes, to)
	}
	if left, err := filepath.Glob(filepath.Join(out, ".*")); err != nil || len(left) > 0 {
		t.Errorf("%v, %v is left in --out", left, err)
	}
	t.Logf("%d changes; starts by number of nodes: %v; the run is at step %s", changes, counts, to)
}

// Launchers of two machines start all their processes again after a failure on one.
func TestLaunchersOfTwoMachines(t *testing.T) {
	full(t)
	out := filepath.Join(t.TempDir(), "out")
	args := with([]string{"launch", "--nodes", "2", "--processes", "2", "--rendezvous", proctest.AddressOfTwo(t), "--restarts", "1", "--"},
		with(small, "--format", "json", "--out", out, "--save-every", "1", "--steps", "100")...)
	one := begin(t, []string{token + "=a"}, with(args[:1], with([]string{"--node-rank", "1"}, args[1:]...)...)...)
	zero := begin(t, []string{token + "=a"}, with(args[:1], with([]string{"--node-rank", "0"}, args[1:]...)...)...)
	victim := one.member(t, 3)
	zero.after(t, 2)
	if err := syscall.Kill(victim, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for node, p := range []*process{zero, one} {
		// Which launcher is the first to see a process end is a race.
		why := regexp.MustCompile(`penstock: rank (3 was ended by signal 9 \(killed\)|[012] exited with 1) after .*; starting again, restart 1 of 1\n`)
		if code := p.end(t); code != exitDone || !why.MatchString(p.stderr.String()) {
			t.Errorf("node %d: exit code %d, stderr:\n%s", node, code, p.stderr)
		}
	}
	if _, done := lines(t, zero.stdout.String()); done.ParamsSHA256 != sha(t, with(small, "--steps", "100")...) || one.stdout.String() != "" {
		t.Errorf("node 0 wrote %+v, node 1 %q", done, one.stdout)
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
	want := fmt.Sprintf("going on from %s with %s instead of %d", train.Store{Dir: out}.Path(saved), processes(n), before)
	if said := first.stderr.String(); !strings.Contains(said, want) {
		t.Errorf("%d processes after %d at step %d say %q, without %q", n, before, saved, said, want)
	}
}
