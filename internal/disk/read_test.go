package disk_test

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"penstock.example/internal/disk"
	"penstock.example/internal/must"
)

// odd makes one of everything that is no regular file, by what it is called in errors.
func odd(t *testing.T) map[string]string {
	t.Helper()
	dir := t.TempDir()
	pipe, socket, link := filepath.Join(dir, "pipe"), filepath.Join(dir, "s"), filepath.Join(dir, "link")
	must.Do(t, syscall.Mkfifo(pipe, 0o666))
	must.Do(t, os.Symlink(pipe, link))
	listener := must.Get(net.Listen("unix", socket))(t)
	t.Cleanup(func() { listener.Close() })
	return map[string]string{"named pipe": pipe, "device": "/dev/zero", "socket": socket, "directory": dir,
		"but a named pipe": link}
}

// Nothing but a regular file is opened, nothing blocks, and the error names what is there.
func TestOpenTakesRegularFilesAlone(t *testing.T) {
	for what, path := range odd(t) {
		_, err := disk.Open(path)
		var at *fs.PathError
		if !errors.Is(err, disk.ErrNotRegular) || !errors.As(err, &at) || at.Path != path ||
			!strings.Contains(err.Error(), what) {
			t.Errorf("%s: error %v, want ErrNotRegular with the path and what is there", what, err)
		}
		if _, err := disk.OpenAppend(path); !errors.Is(err, disk.ErrNotRegular) {
			t.Errorf("%s: OpenAppend gives error %v", what, err)
		}
	}
	dir := t.TempDir()
	dangling := filepath.Join(dir, "dangling")
	must.Do(t, os.Symlink(filepath.Join(dir, "nowhere"), dangling))
	if _, err := disk.Open(dangling); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a dangling link: error %v", err)
	}
}

func TestRead(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	must.Do(t, os.WriteFile(path, []byte("0123456789"), 0o666))
	must.Do(t, os.Symlink(path, link))
	for _, p := range []string{path, link} {
		if got, err := disk.Read(p, 10); err != nil || string(got) != "0123456789" {
			t.Errorf("%s: %q, %v", p, got, err)
		}
	}
	if _, err := disk.Read(path, 9); err == nil || !strings.Contains(err.Error(), path) ||
		!strings.Contains(err.Error(), "10 bytes; want at most 9") {
		t.Errorf("a file above the bound: error %v", err)
	}
	// A file that is all hole is refused by its size: reading it would take as long as its bytes
	// are many.
	must.Do(t, os.Truncate(path, 1<<40))
	if _, err := disk.Read(path, disk.MaxJSON); err == nil || !strings.Contains(err.Error(), "want at most") {
		t.Errorf("a sparse file: error %v", err)
	}
	// The files of /proc tell no size.
	if got, err := disk.Read("/proc/self/status", 1<<20); err != nil || len(got) == 0 {
		t.Errorf("/proc/self/status: %d bytes, %v", len(got), err)
	}
	if _, err := disk.Read("/proc/self/status", 5); err == nil ||
		!strings.Contains(err.Error(), "more than 5 bytes") {
		t.Errorf("/proc/self/status above the bound: error %v", err)
	}
}

// A file is made or gone on with.
func TestOpenAppend(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	for _, want := range []string{"one ", "one one "} {
		f := must.Get(disk.OpenAppend(path))(t)
		_, err := f.WriteString("one ")
		must.Do(t, errors.Join(err, f.Close()))
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("the file has %q, %v, want %q", got, err, want)
		}
	}
}
