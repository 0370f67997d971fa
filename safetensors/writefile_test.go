package safetensors_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"penstock.example/safetensors"
)

// onlyFile returns the content of the one file in a directory, by its path, and fails if there are others.
func onlyFile(t *testing.T, path string) []byte {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 1 || entries[0].Name() != filepath.Base(path) {
		t.Fatalf("the directory has %v, want %s alone", entries, filepath.Base(path))
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func TestWriteFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "w.safetensors")
	if err := os.WriteFile(path, []byte("what was there before, longer than the new file"+smallHeader), 0o600); err != nil {
		t.Fatal(err)
	}
	tensors, metadata := small()
	if err := safetensors.WriteFile(path, tensors, metadata); err != nil {
		t.Fatal(err)
	}
	if content := onlyFile(t, path); !bytes.Equal(content, raw(smallHeader, smallData)) {
		t.Errorf("the file has %q", content)
	}

	file, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.Read("b"); err != nil {
		t.Error(err)
	}
	if err := file.Close(); err != nil {
		t.Error(err)
	}
	if _, err := file.Read("b"); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("Read after Close: error %v, want one that is fs.ErrClosed", err)
	}
}

// A new file is readable for whom the umask allows, as any other file is.
func TestWriteFileFollowsTheUmask(t *testing.T) {
	directory := t.TempDir()
	ordinary := filepath.Join(directory, "ordinary")
	path := filepath.Join(directory, "w.safetensors")
	if err := os.WriteFile(ordinary, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := safetensors.WriteFile(path, nil, nil); err != nil {
		t.Fatal(err)
	}
	want, err := os.Stat(ordinary)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got.Mode() != want.Mode() {
		t.Errorf("mode %v, an ordinary file's is %v", got.Mode(), want.Mode())
	}
}

// A checkpoint that fails half-way must not cost the one before it.
func TestWriteFileThatFailsLeavesTheOldFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "w.safetensors")
	if err := os.WriteFile(path, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("the device is gone")
	err := safetensors.WriteFile(path, []safetensors.Tensor{
		{Name: "a", DType: safetensors.U8, Shape: []int64{4 << 20}, Load: load(make([]byte, 4<<20), nil)},
		{Name: "b", DType: safetensors.U8, Load: load(nil, broken)},
	}, nil)
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), `tensor "b"`) {
		t.Errorf("error %v, want one that names the path, the tensor and the cause", err)
	}
	if content := onlyFile(t, path); string(content) != "old" {
		t.Errorf("the file has %q, want what it had", content)
	}
}

func TestWriteFileWhereItCannot(t *testing.T) {
	directory := t.TempDir()
	if err := safetensors.WriteFile(filepath.Join(directory, "none", "w"), nil, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("into a directory that is not there: error %v", err)
	}
	taken := filepath.Join(directory, "taken")
	if err := os.Mkdir(taken, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := safetensors.WriteFile(taken, nil, nil); err == nil {
		t.Error("over a directory: no error")
	}
	onlyDirectory, err := os.ReadDir(directory)
	if err != nil {
		t.Fatal(err)
	}
	if len(onlyDirectory) != 1 {
		t.Errorf("the directory has %v, want no temporary file left", onlyDirectory)
	}
}

func TestOpenWhatIsNoFile(t *testing.T) {
	directory := t.TempDir()
	if _, err := safetensors.Open(filepath.Join(directory, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: error %v", err)
	}
	if _, err := safetensors.Open(directory); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a directory: error %v", err)
	}
}
