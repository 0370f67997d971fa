package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/internal/nettest"
)

// beginOn starts a process of a run on each of n machines.
func beginOn(t *testing.T, w *nettest.Network, n int, args ...string) (all []*process) {
	t.Helper()
	for rank := range n {
		more := []string{"--processes", fmt.Sprint(n), "--rank", fmt.Sprint(rank), "--rendezvous", w.Address(0) + ":29500"}
		all = append(all, beginIn(t, w.On(rank), []string{token + "=a"}, with(args, more...)...))
	}
	return all
}

// Machines on a slow network that loses packets give the bits of one process.
func TestMachines(t *testing.T) {
	args := with(inThree, "--steps", "3")
	for _, n := range []int{2, 3} {
		w := nettest.New(t, n, nettest.Link{Delay: 5 * time.Millisecond, Loss: 0.01})
		all := beginOn(t, w, n, args...)
		for rank, p := range all {
			if code := p.end(t); code != exitDone {
				t.Fatalf("rank %d of %d: exit code %d, stderr:\n%s", rank, n, code, p.stderr)
			}
		}
		if _, done := lines(t, all[0].stdout.String()); done.ParamsSHA256 != sha(t, with(small, "--steps", "3")...) {
			t.Errorf("%d machines: other weights than one process", n)
		}
		if w.Lost() == 0 {
			t.Errorf("%d machines: no packet was lost", n)
		}
	}
}

// A machine that is cut off is missed by all others, and misses them, in the time of silence. What
// was saved is there.
func TestACutLink(t *testing.T) {
	w := nettest.New(t, 3, nettest.Link{})
	out := filepath.Join(t.TempDir(), "out")
	all := beginOn(t, w, 3, with(inThree, "--steps", "1000000", "--out", out, "--save-every", "2")...)
	all[0].after(t, 3)
	w.Cut(1)
	began := time.Now()
	for slices.ContainsFunc(all, func(p *process) bool { return runs(p.Process.Pid) }) && time.Since(began) < time.Minute {
		time.Sleep(10 * time.Millisecond)
	}
	t.Logf("all ended after %v", time.Since(began))
	for rank, p := range all {
		want := "rank 1 is lost: nothing was heard of it for 5s"
		if rank == 1 {
			want = "rank 0 is lost: nothing was heard of it for 5s"
		}
		if code := p.end(t); code != exitFailed || !strings.Contains(p.stderr.String(), want) {
			t.Errorf("rank %d: exit code %d, stderr %q; want %s", rank, code, p.stderr, want)
		}
	}
	wantGoesOn(t, out, lastStep(t, out)+1, 2)
}
