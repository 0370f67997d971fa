// Package proctest watches processes for tests: whether they run, their children, and the stacks of
// hanging processes. It also keeps ports for tests.
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

// Limit is a time limit for processes that take seconds on an idle machine.
const Limit = 3 * time.Minute

// Watch limits the time of a process, from now until stop is called or the test ends. After the limit the
// test fails, and SIGQUIT ends the process and its children: Go programs print their goroutines' stacks
// first. stop, called once, reports whether the limit was exceeded.
func Watch(t testing.TB, cmd *exec.Cmd, limit time.Duration) (stop func() (hung bool)) {
	timer := time.AfterFunc(limit, func() {
		t.Errorf("%q has not ended within %v; its stacks are at the end of its output", cmd.Args, limit)
		end(cmd.Process.Pid)
	})
	t.Cleanup(func() { timer.Stop() })
	return func() bool { return !timer.Stop() }
}

// end ends a process after its children, as it may pass on their output.
func end(pid int) {
	for _, child := range Children(pid) {
		end(child)
	}
	_ = syscall.Kill(pid, syscall.SIGQUIT)
	_ = syscall.Kill(pid, syscall.SIGCONT) // a stopped process would not see it
	for until := time.Now().Add(5 * time.Second); Runs(pid) && time.Now().Before(until); {
		time.Sleep(10 * time.Millisecond)
	}
	if Runs(pid) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// status returns the fields of /proc/PID/stat after the process's name, or nil if it has ended.
func status(pid int) []string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	end := bytes.LastIndex(stat, []byte(") ")) // the name may have parentheses
	if err != nil || end < 0 {
		return nil
	}
	fields := strings.Fields(string(stat[end+2:]))
	if fields[0] == "Z" {
		return nil
	}
	return fields
}

func Runs(pid int) bool { return status(pid) != nil }

// Children returns the running processes that a process has started.
func Children(of int) (pids []int) {
	entries, _ := filepath.Glob("/proc/[0-9]*")
	for _, e := range entries {
		pid, _ := strconv.Atoi(filepath.Base(e))
		if fields := status(pid); fields != nil && fields[1] == strconv.Itoa(of) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Address returns an address of this machine at which nobody listens. It is kept until the test ends.
func Address(t testing.TB) string {
	t.Helper()
	p, err := launch.KeepPort()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Release() })
	return fmt.Sprint("127.0.0.1:", p.Number)
}
