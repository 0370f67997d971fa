package metrics_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock.example/internal/disk"
	_ "penstock.example/internal/draws" // sets the number of draws
	"penstock.example/internal/metrics"
	"penstock.example/internal/must"
)

// step is what a run measures after a step, the same whenever it takes it.
func step(n int64) metrics.Step {
	s := metrics.Step{Step: n, Epoch: int(n / 5), Time: 1763838000.125 + float64(n), Loss: 1 / float64(n),
		LR:               0.1,
		SamplesPerSecond: 100, PeakBytes: []int64{n << 20, 5}}
	if n%2 == 0 {
		norm := float64(n) / 3
		s.GradNorm = &norm
	}
	return s
}

func test(n int64) metrics.Test {
	return metrics.Test{Step: n, Epoch: int(n / 5), Time: 1763838000.5 + float64(n),
		Accuracy: new(1 - 1/float64(n+1))}
}

func open(t rapid.TB, path string, steps int64) *metrics.Log {
	t.Helper()
	return must.Get(metrics.Open(path, steps))(t)
}

func ok(t rapid.TB, errs ...error) {
	t.Helper()
	must.Do(t, errors.Join(errs...))
}

// The names of fields are what users' scripts read.
func TestLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), metrics.FileName)
	l := open(t, path, 0)
	ok(t, l.Step(step(1)), l.Step(step(2)), l.Test(test(2)), l.Test(test(2)), l.Close())
	got, err := os.ReadFile(path)
	ok(t, err)
	const want = `{"step":1,"epoch":0,"time":1763838001.125,"loss":1,"lr":0.1,"grad_norm":null,"samples_per_s":100,"peak_bytes":[1048576,5]}
{"step":2,"epoch":0,"time":1763838002.125,"loss":0.5,"lr":0.1,"grad_norm":0.6666666666666666,"samples_per_s":100,"peak_bytes":[2097152,5]}
{"step":2,"epoch":0,"time":1763838002.5,"accuracy":0.6666666666666667}
`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
}

// After the last step of an epoch there may be a validation and a test, each once, and both are read
// back.
func TestValidationLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), metrics.FileName)
	l := open(t, path, 0)
	held := test(1)
	held.Validation, held.TestLoss = true, new(0.25)
	ok(t, l.Step(step(1)), l.Test(held), l.Test(held), l.Test(test(1)), l.Close())
	got, err := os.ReadFile(path)
	ok(t, err)
	const want = `{"step":1,"epoch":0,"time":1763838001.5,"accuracy":0.5,"test_loss":0.25,"validation":true}
`
	if lines := strings.SplitAfter(string(got), "\n"); len(lines) != 4 || lines[1] != want {
		t.Errorf("%q; want %q", lines, want)
	}
	l = open(t, path, 1)
	ok(t, l.Test(held), l.Test(test(1)), l.Step(step(2)), l.Close())
	h, err := metrics.Read(path)
	ok(t, err)
	if len(h.Steps) != 2 || len(h.Tests) != 1 || len(h.Validations) != 1 ||
		*h.Validations[0].TestLoss != 0.25 {
		t.Errorf("%+v", h)
	}
}

// However often a run is killed, by a signal or with its machine, and from whichever checkpoint it
// goes on: its file has every step and every test once, in order.
func TestResumedWithoutGapsAndDoubles(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		path := filepath.Join(dir, metrics.FileName)
		ok(t, os.RemoveAll(path))
		const last, saveEvery, testEvery = 23, 4, 3
		checkpoints := []int64{0}
		for done := int64(0); done < last; {
			done = rapid.SampledFrom(checkpoints).Draw(t, "resumed from")
			for checkpoints[len(checkpoints)-1] > done { // an older one was chosen by removing the others
				checkpoints = checkpoints[:len(checkpoints)-1]
			}
			l := open(t, path, done)
			killed := rapid.Int64Range(done+1, last+8).Draw(t, "killed at")
			safe := int64(0) // bytes that are on disk
			for done < min(killed, last) {
				done++
				ok(t, l.Step(step(done)))
				if done%testEvery == 0 || done == last {
					ok(t, l.Test(test(done)))
				}
				if done%saveEvery == 0 {
					ok(t, l.Sync())
					info, err := os.Stat(path)
					ok(t, err)
					safe = info.Size()
					checkpoints = append(checkpoints, done)
				}
			}
			ok(t, l.Close())
			if killed > last {
				break
			}
			done = 0
			content, err := os.ReadFile(path)
			ok(t, err)
			from := max(safe, int64(len(cutAt(t, path, checkpoints[len(checkpoints)-1]))))
			keep := rapid.Int64Range(from, int64(len(content))).Draw(t, "bytes left")
			tail := rapid.SampledFrom([]string{"", "", "\x00\x00\x00", "\x00\n\x00\n"}).Draw(t, "tail")
			if keep == 0 {
				tail = ""
			}
			ok(t, os.WriteFile(path, []byte(string(content[:keep])+tail), 0o666))
		}
		got, err := metrics.Read(path)
		ok(t, err)
		var want metrics.History
		for n := int64(1); n <= last; n++ {
			want.Steps = append(want.Steps, step(n))
			if n%testEvery == 0 || n == last {
				want.Tests = append(want.Tests, test(n))
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(diff)
		}
	})
}

// cutAt is the lines of a file up to a step.
func cutAt(t rapid.TB, path string, steps int64) (out string) {
	t.Helper()
	content, err := os.ReadFile(path)
	ok(t, err)
	for text := range strings.Lines(string(content)) {
		var n int64
		if fmt.Sscanf(text, `{"step":%d`, &n); n > steps {
			break
		}
		out += text
	}
	return out
}

// What no run has written, or what is damaged before the point to go on from, stays as it is.
func TestRefused(t *testing.T) {
	for name, content := range map[string]string{
		"notes":              "my notes\n",
		"step 0":             `{"step":0,"loss":1}` + "\n",
		"disorder":           `{"step":2}` + "\n" + `{"step":1}` + "\n" + `{"step":3}` + "\n",
		"twice":              `{"step":2}` + "\n" + `{"step":2}` + "\n",
		"step after a test":  `{"step":2,"accuracy":1}` + "\n" + `{"step":2}` + "\n",
		"damaged in between": `{"step":1}` + "\n" + `{"st` + "\n" + `{"step":3}` + "\n",
	} {
		path := filepath.Join(t.TempDir(), metrics.FileName)
		ok(t, os.WriteFile(path, []byte(content), 0o666))
		_, err := metrics.Open(path, 3)
		if err == nil || !strings.Contains(err.Error(), path) ||
			!strings.Contains(err.Error(), "move it away") {
			t.Errorf("%s: error %v", name, err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != content {
			t.Errorf("%s: the file has changed to %q, %v", name, got, err)
		}
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	ok(t, syscall.Mkfifo(pipe, 0o666))
	if _, err := metrics.Open(pipe, 0); !errors.Is(err, disk.ErrNotRegular) {
		t.Errorf("a named pipe: error %v", err)
	}
	if _, err := metrics.Read(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: error %v", err)
	}
}

// A line that the disk had no space for is written with the next.
func TestFullDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), metrics.FileName)
	l := open(t, path, 0)
	ok(t, l.Step(step(1)))
	info, err := os.Stat(path)
	ok(t, err)
	limit(t, info.Size()+10)
	if err := l.Step(step(2)); !errors.Is(err, syscall.EFBIG) {
		t.Errorf("error %v", err)
	}
	limit(t, -1)
	ok(t, l.Sync(), l.Step(step(3)), l.Close())
	got, err := metrics.Read(path)
	ok(t, err)
	if diff := cmp.Diff([]metrics.Step{step(1), step(2), step(3)}, got.Steps); diff != "" {
		t.Error(diff)
	}
}

// limit makes files of at most so many bytes possible; -1 is no limit.
func limit(t *testing.T, bytes int64) {
	t.Helper()
	var now syscall.Rlimit
	ok(t, syscall.Getrlimit(syscall.RLIMIT_FSIZE, &now))
	now.Cur = uint64(bytes)
	if bytes < 0 {
		now.Cur = now.Max
	}
	ok(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &now))
}
