package command

import (
	"math"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	noerr "penstock.example/internal/must"
	"penstock.example/train"
)

func TestCoresFor(t *testing.T) {
	for _, tt := range []struct{ cores, devices, want int }{{8, 1, 8}, {8, 2, 4}, {8, 3, 2}, {2, 4, 1},
		{1, 1, 1}, {1000, 1, 256}} {
		if got := coresFor(tt.cores, tt.devices); got != tt.want {
			t.Errorf("%d cores for %d devices: %d threads each, want %d", tt.cores, tt.devices, got, tt.want)
		}
	}
}

// --threads all shares the cores out over the devices, and writes the number down: a run that is resumed has
// the same, so that its results are those of a run that was never interrupted.
func TestThreadsAll(t *testing.T) {
	out := filepath.Join(t.TempDir(), "run")
	threads := func() int { return threadsIn(t, out) }
	cores := runtime.NumCPU()
	r := must(t, with(small, "--steps", "1", "--balance", "3,3", "--threads", "all", "--out", out)...)
	two := max(cores/2, 1)
	if want := "--threads all: " + counted(two, "thread") + " on each device\n"; !strings.Contains(r.stderr,
		want) || threads() != two {
		t.Errorf("%d threads, %s", threads(), r.stderr)
	}
	r = must(t, with(small, "--steps", "2", "--balance", "6", "--threads", "all", "--out", out,
		"--resume")...)
	if threads() != two || cores > 1 && !strings.Contains(r.stderr, "as before") ||
		strings.Contains(r.stderr, "bits differ") {
		t.Errorf("resumed: %d threads, %s", threads(), r.stderr)
	}
	// on one device from the beginning
	out = filepath.Join(t.TempDir(), "one")
	must(t, with(small, "--steps", "1", "--balance", "6", "--threads", "all", "--out", out)...)
	if threads() != cores {
		t.Errorf("%d threads on one device of %d cores", threads(), cores)
	}
	for want, args := range map[string][]string{
		`--threads "some": want a whole number from 1 to 256, or all`: {"--threads", "some"},
	} {
		if r := command(t, with(small, append(args, "--steps", "1")...)...); r.code != exitUsage ||
			!strings.Contains(r.stderr, want) {
			t.Errorf("%v: %+v", args, r)
		}
	}
}

// threadsIn is the number of threads that the newest checkpoint of a run has.
func threadsIn(t *testing.T, out string) int {
	t.Helper()
	c := noerr.Get((&train.Store{Dir: out}).Latest())(t)
	return c.Recipe.Threads
}

// Without --threads a run that is long enough takes the number that is faster, and writes it down. A
// run that is resumed has the number that it had.
func TestThreadsByTime(t *testing.T) {
	const told = "by measured time"
	fewMicroBatches = 100
	defer func() { fewMicroBatches = math.MaxInt64 }()
	setClock(t, steady) // by which no number is faster than another
	out := filepath.Join(t.TempDir(), "long")
	r := must(t, with(small, "--steps", "26", "--out", out)...) // in 104 micro-batches
	config := mustRead(t, filepath.Join(out, flagsFile))
	if measured := runtime.NumCPU() > 1; strings.Contains(r.stderr,
		"--threads 1, by measured time: 2 are ") != measured ||
		strings.Contains(string(config), "threads = 1 # by measured time\n") != measured ||
		threadsIn(t, out) != 1 {
		t.Errorf("%d threads, %s\n%s", threadsIn(t, out), r.stderr, config)
	}
	if r := must(t, with(small, "--steps", "60", "--out", out, "--resume")...); strings.Contains(r.stderr,
		"--threads") {
		t.Errorf("resumed: %s", r.stderr)
	}
	clock = nil
	out = filepath.Join(t.TempDir(), "two")
	must(t, with(small, "--steps", "1", "--threads", "2", "--out", out)...)
	if must(t, with(small, "--steps", "2", "--out", out, "--resume")...); threadsIn(t, out) != 2 {
		t.Errorf("resumed: %d threads", threadsIn(t, out))
	}
	for _, args := range [][]string{{"--steps", "25"}, {"--steps", "26", "--threads", "1"}} {
		if r := must(t, with(small, args...)...); strings.Contains(r.stderr, told) {
			t.Errorf("%v: %s", args, r.stderr)
		}
	}
}
