package main

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// network is machines on a switch: network namespaces, each with an interface on a bridge.
type network struct {
	name string // of the namespaces' names, the beginning
}

// newNetwork makes a network of n machines, whose packets are sent as tc's netem says ("delay 1ms"),
// and removes it when the test ends. The test is skipped where that is not permitted.
func newNetwork(t *testing.T, n int, netem string) network {
	t.Helper()
	w := network{fmt.Sprintf("penstock-%d", time.Now().UnixNano()%1e9)}
	run := func(command string, args ...any) {
		t.Helper()
		words := strings.Fields(fmt.Sprintf(command, args...))
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			t.Skipf("network namespaces cannot be used here: %s: %v: %s", strings.Join(words, " "), err, out)
		}
	}
	add := func(namespace string) {
		t.Helper()
		run("ip netns add %s", namespace)
		t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", namespace).Run() })
	}
	add(w.hub())
	run("ip -n %s link add switch type bridge", w.hub())
	run("ip -n %s link set switch up", w.hub())
	for i := range n {
		add(w.machine(i))
		run("ip -n %s link add port%d type veth peer name eth0 netns %s", w.hub(), i, w.machine(i))
		run("ip -n %s link set port%d master switch up", w.hub(), i)
		run("ip -n %s addr add %s/24 dev eth0", w.machine(i), w.address(i))
		run("ip -n %s link set eth0 up", w.machine(i))
		run("ip -n %s link set lo up", w.machine(i))
		if netem == "" {
			continue
		}
		words := append([]string{"-n", w.machine(i), "qdisc", "add", "dev", "eth0", "root", "netem"}, strings.Fields(netem)...)
		if out, err := exec.Command("tc", words...).CombinedOutput(); err != nil {
			t.Logf("the network is as fast as it is, without %s: %v: %s", netem, err, out)
			netem = ""
		}
	}
	return w
}

func (w network) hub() string          { return w.name + "-hub" }
func (w network) machine(i int) string { return fmt.Sprintf("%s-%d", w.name, i) }
func (network) address(i int) string   { return fmt.Sprintf("10.77.0.%d", i+1) }

// cut takes a machine from the network: nothing reaches it or comes from it, and nobody is told.
func (w network) cut(t *testing.T, i int) {
	t.Helper()
	if out, err := exec.Command("ip", "-n", w.hub(), "link", "set", fmt.Sprintf("port%d", i), "down").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// begin starts a process of a run on each of n machines.
func (w network) begin(t *testing.T, n int, args ...string) (all []*process) {
	t.Helper()
	for rank := range n {
		more := []string{"--processes", fmt.Sprint(n), "--rank", fmt.Sprint(rank), "--rendezvous", w.address(0) + ":29500"}
		all = append(all, beginIn(t, []string{"ip", "netns", "exec", w.machine(rank)}, []string{token + "=a"}, with(args, more...)...))
	}
	return all
}

// Machines on a slow network that loses packets give the bits of one process.
func TestMachines(t *testing.T) {
	args := with(inThree, "--steps", "3")
	for _, n := range []int{2, 3} {
		w := newNetwork(t, n, "delay 1ms loss 1%")
		all := w.begin(t, n, args...)
		for rank, p := range all {
			if code := p.end(t); code != exitDone {
				t.Fatalf("rank %d of %d: exit code %d, stderr:\n%s", rank, n, code, p.stderr)
			}
		}
		if _, done := lines(t, all[0].stdout.String()); done.ParamsSHA256 != sha(t, with(small, "--steps", "3")...) {
			t.Errorf("%d machines: other weights than one process", n)
		}
	}
}

// A machine that is cut off is missed by all others, and misses them, in the time of silence. What
// was saved is there.
func TestACutLink(t *testing.T) {
	w := newNetwork(t, 3, "")
	out := filepath.Join(t.TempDir(), "out")
	all := w.begin(t, 3, with(inThree, "--steps", "1000000", "--out", out, "--save-every", "2")...)
	all[0].after(t, 3)
	w.cut(t, 1)
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
