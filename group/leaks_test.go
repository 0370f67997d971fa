package group_test

import (
	"os"
	"testing"
	"time"

	"penstock.example/group"
	"penstock.example/internal/torchtest"
)

// entries is how many a directory has.
func entries(t *testing.T, dir string) int {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// Groups that come and go leave no thread and no open file or connection, whether their members
// leave in order or after a failure.
func TestGroupsLeaveNoThreadAndNoConnection(t *testing.T) {
	torchtest.Check(t)
	const groups, more = 12, 6 // Go may start a thread of its own now and then
	var threads, files int
	var configs []settings // each keeps a port
	for range groups {
		configs = append(configs, config(t, 3))
	}
	for i, cfg := range configs {
		all := inProcess(t, cfg)
		none(t, each(all, exchange))
		if i%2 == 1 {
			all[1].Fail(group.Failure{Stage: -1, MicroBatch: -1, Message: "enough"})
		}
		for _, err := range each(all, func(g *group.Group) error { return g.Close() }) {
			if err != nil && i%2 == 0 {
				t.Fatal(err)
			}
		}
		if i == 1 {
			threads, files = entries(t, "/proc/self/task"), entries(t, "/proc/self/fd")
		}
	}
	for until := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		nowThreads, nowFiles := entries(t, "/proc/self/task"), entries(t, "/proc/self/fd")
		if nowThreads <= threads+more && nowFiles <= files {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("%d threads and %d open files after %d groups, %d and %d after 2", nowThreads, nowFiles, groups, threads, files)
		}
	}
}
