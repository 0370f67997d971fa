package proctest_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock.example/internal/proctest"
)

// role in the environment makes this test binary a process that hangs, perhaps after it has started another.
const role = "PENSTOCK_TEST_PROCTEST"

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "parent":
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), role+"=child")
		child.Stdout, child.Stderr = os.Stdout, os.Stderr
		hangsInTheParent(child)
	case "child":
		fmt.Println("there")
		hangsInTheChild()
	}
	os.Exit(m.Run())
}

//go:noinline
func hangsInTheParent(child *exec.Cmd) {
	_ = child.Run()
	time.Sleep(time.Hour)
}

//go:noinline
func hangsInTheChild() { time.Sleep(time.Hour) }

// recorder is a test whose failures are recorded.
type recorder struct {
	testing.TB
	said []string
}

func (r *recorder) Errorf(format string, args ...any) {
	r.said = append(r.said, fmt.Sprintf(format, args...))
}

// started starts a process that starts another, and returns when that is there.
func started(t *testing.T, stderr *bytes.Buffer) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), role+"=parent")
	cmd.Stderr = stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err == nil {
		_, err = out.Read(make([]byte, 1))
	}
	if err != nil {
		t.Fatal(err)
	}
	return cmd
}

// A process that hangs, and one that it has started, say where, and have ended.
func TestAHangSaysWhere(t *testing.T) {
	var stderr bytes.Buffer
	r := &recorder{TB: t}
	cmd := started(t, &stderr)
	children := proctest.Children(cmd.Process.Pid)
	stop := proctest.Watch(r, cmd, time.Millisecond)
	_ = cmd.Wait()
	if !stop() || len(r.said) != 1 || !strings.Contains(r.said[0], "has not ended within 1ms") {
		t.Errorf("the test says %q", r.said)
	}
	for _, want := range []string{"SIGQUIT", "hangsInTheChild", "hangsInTheParent"} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("no %s in\n%s", want, &stderr)
		}
	}
	if len(children) != 1 || slices.ContainsFunc(children, proctest.Runs) || proctest.Runs(cmd.Process.Pid) {
		t.Errorf("of %d with the children %v some still run", cmd.Process.Pid, children)
	}
}

// Nothing is said of a process that ends in time.
func TestNoHang(t *testing.T) {
	var stderr bytes.Buffer
	r := &recorder{TB: t}
	cmd := started(t, &stderr)
	stop := proctest.Watch(r, cmd, time.Hour)
	for _, pid := range append(proctest.Children(cmd.Process.Pid), cmd.Process.Pid) {
		p, err := os.FindProcess(pid)
		if err != nil || !proctest.Runs(pid) || p.Kill() != nil {
			t.Errorf("process %d does not run: %v", pid, err)
		}
	}
	_ = cmd.Wait()
	if stop() || len(r.said) > 0 || stderr.Len() > 0 {
		t.Errorf("the test says %q, the processes %s", r.said, &stderr)
	}
}
