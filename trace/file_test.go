package trace_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock.example/schedule"
	"penstock.example/trace"
)

func TestWriteFile(t *testing.T) {
	timeline := simulated(t, schedule.Config{Stages: 2, MicroBatches: 2})
	path := filepath.Join(t.TempDir(), "run.json")
	for _, before := range []string{"nothing", "another trace"} {
		if err := trace.WriteFile(path, timeline, trace.Options{Process: before}); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(written(t, timeline, trace.Options{Process: before}), string(got)); diff != "" {
			t.Errorf("over %s (-want +got):\n%s", before, diff)
		}
	}
	alone(t, path)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != 0o644 {
		t.Errorf("mode %v, want that others can read it", got)
	}
}

// What was there before survives a failure, and nothing is left lying about.
func TestWriteFileFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.json")
	if err := os.WriteFile(path, []byte("before"), 0o600); err != nil {
		t.Fatal(err)
	}
	timeline := simulated(t, schedule.Config{Stages: 2, MicroBatches: 2})
	if err := trace.WriteFile(path, timeline, trace.Options{Workers: []string{"one"}}); err == nil {
		t.Error("no error for too few names")
	}
	timeline.Events[3].Start = -1 // found when a part is written already
	if err := trace.WriteFile(path, timeline, trace.Options{}); err == nil {
		t.Error("no error for a negative time")
	}
	got, err := os.ReadFile(path)
	if err != nil || string(got) != "before" {
		t.Errorf("the file is %q, %v, want it untouched", got, err)
	}
	alone(t, path)
}

func TestWriteFileToNowhere(t *testing.T) {
	timeline := simulated(t, schedule.Config{Stages: 1, MicroBatches: 1})
	dir := t.TempDir()
	err := trace.WriteFile(filepath.Join(dir, "none", "run.json"), timeline, trace.Options{})
	if err == nil || !strings.HasPrefix(err.Error(), "trace: ") {
		t.Errorf("no such folder: %v", err)
	}

	// A folder cannot be replaced by a file.
	taken := filepath.Join(dir, "run.json")
	if err := os.Mkdir(taken, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := trace.WriteFile(taken, timeline, trace.Options{}); err == nil {
		t.Error("a folder was replaced")
	}
	alone(t, taken)
}

// alone fails if the file is not the only one in its folder.
func alone(t *testing.T, path string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != filepath.Base(path) {
			t.Errorf("%s was left behind", e.Name())
		}
	}
}
