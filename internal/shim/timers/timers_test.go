//go:build linux

package timers_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	_ "penstock.example/internal/shim/timers"
)

// All threads have the slack, the runtime's own among them.
func TestSlack(t *testing.T) {
	files, err := filepath.Glob("/proc/self/task/*")
	if err != nil || len(files) < 2 {
		t.Fatalf("threads %v, %v; want several", files, err)
	}
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join("/proc", filepath.Base(f), "timerslack_ns"))
		if os.IsPermission(err) {
			t.Skip(err) // only who may schedule other threads may read theirs
		}
		if err != nil {
			continue // it has ended
		}
		if got := strings.TrimSpace(string(text)); got != "1000000" {
			t.Errorf("thread %s: %s ns", filepath.Base(f), got)
		}
	}
}
