package data_test

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"penstock.example/data"
	"penstock.example/internal/must"
)

// fill returns the batch of some samples.
func fill(t *testing.T, set data.Dataset, indices ...int) data.Batch {
	t.Helper()
	var batch data.Batch
	must.Do(t, set.Fill(&batch, indices))
	return batch
}

// zipped returns content as a gzip file.
func zipped(t *testing.T, content []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	must.Get(w.Write(content))(t)
	must.Do(t, w.Close())
	return b.Bytes()
}

// directoryOf returns a directory with these files.
func directoryOf(t *testing.T, files map[string][]byte) string {
	t.Helper()
	directory := t.TempDir()
	for name, content := range files {
		path := filepath.Join(directory, name)
		must.Do(t, os.MkdirAll(filepath.Dir(path), 0o755))
		writeFile(t, path, content)
	}
	return directory
}

func writeFile(t *testing.T, path string, content []byte) {
	t.Helper()
	must.Do(t, os.WriteFile(path, content, 0o644))
}

// wantError fails unless err has all the parts in it.
func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want one with %q", parts)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q, want %q in it", err, part)
		}
	}
}

// open is data.Open.
func open(t must.T, name, directory string, o data.Options) (train, test data.Dataset) {
	t.Helper()
	train, test, err := data.Open(name, directory, o)
	must.Do(t, err)
	return train, test
}
