// Package must is for tests. It ends a test at an unexpected error, and compares texts with files.
package must

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Update is set if files with expected results are written anew.
var Update = flag.Bool("update", false, "write the files with expected results")

// T is a *testing.T, a *testing.B or a *rapid.T.
type T interface {
	Helper()
	Fatal(args ...any)
}

// Get is for calls with two results: must.Get(f())(t) returns v.
func Get[V any](v V, err error) func(t T) V {
	return func(t T) V {
		t.Helper()
		Do(t, err)
		return v
	}
}

func Do(t T, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}

// Match compares a text with testdata/name.
func Match(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *Update {
		Do(t, os.WriteFile(path, []byte(got), 0o644))
	}
	if diff := cmp.Diff(string(Get(os.ReadFile(path))(t)), got); diff != "" {
		t.Errorf("%s differs (-want +got):\n%s", path, diff)
	}
}
