// Package proctest gives tests the processes of this machine: which a process has started, whether one
// still runs, where one hangs, and ports at which they meet.
package proctest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"penstock.example/internal/launch"
)

// Limit is how long a process of a test may take that takes seconds, on a machine that does much else.
const Limit = 3 * time.Minute

// Watch bounds how long a process that was started may run from now on, until stop is called or the
// test ends. After the limit the test fails, and the process is ended, with all that it has started, by
// SIGQUIT: programs in Go write first where their goroutines are. stop, called once, reports whether
// the limit was exceeded.
func Watch(t testing.TB, cmd *exec.Cmd, limit time.Duration) (stop func() (hung bool)) {
	timer := time.AfterFunc(limit, func() {
		t.Errorf("%q has not ended within %v; where it hangs is at the end of what it has written",
			cmd.Args, limit)
		end(cmd.Process.Pid)
	})
	t.Cleanup(func() { timer.Stop() })
	return func() bool { return !timer.Stop() }
}

// end ends a process after those that it has started: what it passes on for them is then there.
func end(pid int) {
	for _, child := range Children(pid) {
		end(child)
	}
	_ = syscall.Kill(pid, syscall.SIGQUIT)
	_ = syscall.Kill(pid, syscall.SIGCONT) // one that is stopped would not see it
	for until := time.Now().Add(5 * time.Second); Runs(pid) && time.Now().Before(until); {
		time.Sleep(10 * time.Millisecond)
	}
	if Runs(pid) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// status is the fields of /proc/PID/stat after the name of the process, or nil if it does not run.
func status(pid int) []string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	end := bytes.LastIndex(stat, []byte(") ")) // a name may have parentheses
	if err != nil || end < 0 {
		return nil
	}
	fields := strings.Fields(string(stat[end+2:]))
	if fields[0] == "Z" {
		return nil
	}
	return fields
}

// Runs reports whether a process has not ended.
func Runs(pid int) bool { return status(pid) != nil }

// Children are the processes that a process has started and that run.
func Children(of int) (pids []int) {
	entries, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		panic(err) // the pattern is wrong
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(filepath.Base(e))
		if err != nil {
			continue
		}
		if fields := status(pid); fields != nil && fields[1] == strconv.Itoa(of) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Address is an address of this machine at which nobody listens, which is kept for the test until it ends.
func Address(t testing.TB) string {
	t.Helper()
	p, err := launch.KeepPort(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Release() })
	return p.Address()
}
