package disk_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"penstock.example/internal/disk"
	"penstock.example/internal/must"
)

func text(s string) func(io.Writer) error {
	return func(w io.Writer) error { _, err := io.WriteString(w, s); return err }
}

// Whatever goes wrong, what was there stays, and nothing is left beside it.
func TestWriteIsWholeOrNotAtAll(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	broken := errors.New("broken")
	for _, step := range []struct {
		content func(io.Writer) error
		want    error
		there   string
	}{
		{text("one"), nil, "one"},
		{func(w io.Writer) error { return errors.Join(text("half")(w), broken) }, broken, "one"},
		{text("another"), nil, "another"},
	} {
		if err := disk.Write(path, step.content); !errors.Is(err, step.want) {
			t.Fatalf("error %v, want %v", err, step.want)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != step.there {
			t.Errorf("the file has %q, %v, want %q", got, err, step.there)
		}
		if err := disk.Probe(path); err != nil {
			t.Error(err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
			t.Errorf("left beside it: %v, %v", left, err)
		}
	}
}

// Only regular files and character devices are written to, and a device stays what it is.
func TestWriteTakesFilesAndDevices(t *testing.T) {
	paths := odd(t)
	delete(paths, "device") // /dev/zero can be written to
	for what, path := range paths {
		before := must.Get(os.Lstat(path))(t)
		if err := disk.Probe(path); !errors.Is(err, disk.ErrNotRegular) {
			t.Errorf("%s: Probe gives error %v", what, err)
		}
		if err := disk.Write(path, text("x")); !errors.Is(err, disk.ErrNotRegular) {
			t.Errorf("%s: error %v", what, err)
		}
		if after, err := os.Lstat(path); err != nil || !os.SameFile(before, after) {
			t.Errorf("%s was replaced", what)
		}
	}
	// a link, so that a fault does not cost the machine its /dev/null
	null := filepath.Join(t.TempDir(), "null")
	must.Do(t, os.Symlink("/dev/null", null))
	if err := errors.Join(disk.Probe(null), disk.Write(null, text("x"))); err != nil {
		t.Error(err)
	}
	if target, err := os.Readlink(null); err != nil || target != "/dev/null" {
		t.Errorf("the device was replaced: %q, %v", target, err)
	}
	if err := disk.Write("/dev/full", text("x")); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a full device: error %v", err)
	}
	for _, path := range []string{"/dev/nul", "/dev/stdout", "/dev/fd/1"} {
		if err := disk.Probe(path); err == nil {
			t.Errorf("%s: no error", path) // under go test stdout is no terminal
		}
	}
	missing := filepath.Join(t.TempDir(), "none", "file")
	for _, err := range []error{disk.Probe(missing), disk.Write(missing, text("x"))} {
		var of *os.PathError
		if !errors.Is(err, os.ErrNotExist) || !errors.As(err, &of) || of.Path != missing {
			t.Errorf("no such directory: error %v, want one of %s", err, missing)
		}
	}
}
