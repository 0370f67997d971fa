package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"penstock.example/internal/draws"
	"penstock.example/internal/proctest"
)

// beginOn starts a process of a run on each of n machines.
func beginOn(t *testing.T, w *network, n int, args ...string) (all []*process) {
	t.Helper()
	address := w.rendezvous(t)
	for rank := range n {
		more := []string{"--processes", fmt.Sprint(n), "--rank", fmt.Sprint(rank), "--rendezvous", address}
		all = append(all, beginIn(t, w.on(rank), []string{token + "=a"}, with(args, more...)...))
	}
	return all
}

// endAs waits for the end of processes that are to train as one that takes so many steps.
func endAs(t *testing.T, all []*process, steps int) {
	t.Helper()
	for rank, p := range all {
		if code := p.end(t); code != exitDone {
			t.Fatalf("rank %d of %d: exit code %d, stderr:\n%s", rank, len(all), code, p.stderr)
		}
	}
	if _, done := lines(t, all[0].stdout.String()); done.ParamsSHA256 != sha(t, with(small, "--steps", fmt.Sprint(steps))...) {
		t.Errorf("%d machines: other weights than one process", len(all))
	}
}

// Machines on a slow network that loses packets give the bits of one process. Where there are no
// namespaces, so do processes that are told an address of this machine.
func TestMachines(t *testing.T) {
	for _, loopback := range []bool{false, true} {
		t.Run(fmt.Sprint("loopback=", loopback), func(t *testing.T) {
			for _, n := range []int{2, 3} {
				if (n != 3 || loopback) && !draws.Full {
					continue
				}
				w := newNetwork(t, n, loopback, 5*time.Millisecond, 0.01)
				endAs(t, beginOn(t, w, n, with(inThree, "--steps", "3")...), 3)
				if w.carries() && w.lost.Load() == 0 {
					t.Errorf("%d machines: no packet was lost", n)
				}
			}
		})
	}
}

// A machine that is cut off is missed by all others, and misses them, in the time of silence. So is one
// that only hears, and is told so. What was saved is there. Where nothing can be cut, the machine's process is
// stopped instead, and hears of it when it goes on.
func TestACutLink(t *testing.T) {
	for _, row := range []struct {
		name           string
		loopback, deaf bool
	}{
		{"cut", false, true},
		{"mute", false, false},
		{"stopped", true, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := newNetwork(t, 3, row.loopback, 0, 0)
			out := filepath.Join(t.TempDir(), "out")
			all := beginOn(t, w, 3, with(inThree, "--steps", "1000000", "--out", out, "--save-every", "2", "--silence", "3s")...)
			all[0].after(t, 3)
			if w.set(1, row.deaf, true); !w.carries() {
				if err := all[1].Process.Signal(syscall.SIGSTOP); err != nil {
					t.Fatal(err)
				}
			}
			began := time.Now()
			left := func(ranks ...*process) {
				for slices.ContainsFunc(ranks, func(p *process) bool { return proctest.Runs(p.Process.Pid) }) && time.Since(began) < proctest.Limit {
					time.Sleep(10 * time.Millisecond)
				}
			}
			left(all[0], all[2])
			if !w.carries() {
				if err := all[1].Process.Signal(syscall.SIGCONT); err != nil {
					t.Fatal(err)
				}
			}
			left(all...)
			took := time.Since(began)
			t.Logf("all ended after %v", took)
			if slices.ContainsFunc(all, func(p *process) bool { return proctest.Runs(p.Process.Pid) }) || took < time.Second {
				t.Fatalf("after %v some run, or all have ended too soon", took)
			}
			for rank, p := range all {
				want := "rank 1 is lost: nothing was heard of it for 3s"
				if rank == 1 {
					want = "is lost: nothing was heard of it for 3s"
				}
				if rank == 1 && (row.name != "cut" || !w.carries()) { // it may find first that the others have left
					want = "is lost: "
				}
				if code := p.end(t); code != exitFailed || !strings.Contains(p.stderr.String(), want) {
					t.Errorf("rank %d: exit code %d, stderr %q; want %s", rank, code, p.stderr, want)
				}
			}
			if saved := lastStep(t, out); row.name == "cut" || draws.Full {
				wantGoesOn(t, out, saved+1, 2)
			}
		})
	}
}

// A machine that is away for less than the time of silence is missed by nobody: packets come again, and
// the bits are those of one process.
func TestALinkThatComesBack(t *testing.T) {
	w := newNetwork(t, 3, false, 0, 0)
	if !w.carries() {
		t.Skip("nothing can be cut")
	}
	all := beginOn(t, w, 3, with(inThree, "--steps", "40")...)
	all[0].after(t, 3)
	w.set(2, true, true)
	time.Sleep(1500 * time.Millisecond)
	w.set(2, false, false)
	endAs(t, all, 40)
}
