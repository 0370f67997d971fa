// Package must ends a test at an unexpected error.
package must

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
