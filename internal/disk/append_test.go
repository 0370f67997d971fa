package disk_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"penstock.example/internal/disk"
)

// A file is made or gone on with, and anything else is refused and stays as it is.
func TestOpenAppend(t *testing.T) {
	for what, path := range odd(t) {
		if _, err := disk.OpenAppend(path); !errors.Is(err, disk.ErrNotRegular) {
			t.Errorf("%s: error %v", what, err)
		}
	}
	path := filepath.Join(t.TempDir(), "file")
	for _, want := range []string{"one ", "one one "} {
		f, err := disk.OpenAppend(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(f, "one "); err != nil {
			t.Error(err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("the file has %q, %v, want %q", got, err, want)
		}
	}
	if _, err := disk.OpenAppend(filepath.Join(t.TempDir(), "none", "file")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no such directory: error %v", err)
	}
}
