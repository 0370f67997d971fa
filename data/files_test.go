package data_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"penstock.example/data"
	"penstock.example/internal/disk"
	"penstock.example/internal/must"
)

// Files lists what Open reads: without any one of them Open fails.
func TestFilesAreThoseThatOpenReads(t *testing.T) {
	text := map[string][]byte{"b.txt": bytes.Repeat([]byte("b"), 300), "a.txt": bytes.Repeat([]byte("a"), 300), "notes.md": nil}
	for _, row := range []struct {
		name  string
		files map[string][]byte
		want  []string
	}{
		{"mnist", mnistFiles(), []string{"train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"}},
		{"text", text, []string{"a.txt", "b.txt"}},
	} {
		directory := directoryOf(t, row.files)
		var want []string
		for _, name := range row.want {
			if _, plain := row.files[name]; !plain {
				name += ".gz"
			}
			want = append(want, filepath.Join(directory, name))
		}
		got, err := data.Files(row.name, directory, data.Options{})
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v, want %v", row.name, got, err, want)
		}
	}
	if got, err := data.Files("synthetic", "", data.Options{}); err != nil || got != nil {
		t.Errorf("synthetic: %v, %v", got, err)
	}
	if _, err := data.Files("imagenet", "", data.Options{}); err == nil {
		t.Error("an unknown data set: no error")
	}
}

// A named pipe or a device in place of a file is refused, not waited for or read without end; so is
// a text that no memory holds.
func TestOpenTakesRegularFilesAlone(t *testing.T) {
	images := mnistFiles()
	delete(images, "train-images-idx3-ubyte")
	delete(images, "train-images-idx3-ubyte.gz")
	for _, row := range []struct {
		set, file string
		directory string
	}{
		{"mnist", "train-images-idx3-ubyte", directoryOf(t, images)},
		{"cifar10", "data_batch_1.bin", directoryOf(t, cifarOthers())},
		{"text", "a.txt", t.TempDir()},
	} {
		path := filepath.Join(row.directory, row.file)
		for what, put := range map[string]func() error{
			"named pipe": func() error { return syscall.Mkfifo(path, 0o666) },
			"device":     func() error { return os.Symlink("/dev/zero", path) },
		} {
			must.Do(t, put())
			_, _, err := data.Open(row.set, row.directory, data.Options{})
			wantError(t, err, row.set, path, what)
			if !errors.Is(err, disk.ErrNotRegular) {
				t.Errorf("%s, a %s: error %v", row.set, what, err)
			}
			must.Do(t, os.Remove(path))
		}
	}
	path := filepath.Join(t.TempDir(), "a.txt")
	writeFile(t, path, []byte("x"))
	must.Do(t, os.Truncate(path, data.MaxText+1))
	_, _, err := data.Open("text", path, data.Options{})
	wantError(t, err, path, "want at most 4294967296")
}

// cifarOthers are CIFAR-10's files but for the first, empty: they have to be there before any is
// read.
func cifarOthers() map[string][]byte {
	return map[string][]byte{"data_batch_2.bin": nil, "data_batch_3.bin": nil, "data_batch_4.bin": nil, "data_batch_5.bin": nil, "test_batch.bin": nil}
}
