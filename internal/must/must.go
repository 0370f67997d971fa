// Package must is for tests: it ends one where a call that is to succeed fails.
package must

// T is a *testing.T, a *testing.B or a *rapid.T.
type T interface {
	Helper()
	Fatal(args ...any)
}

// Get returns v: must.Get(f())(t). It fails the test if err is not nil.
func Get[V any](v V, err error) func(t T) V {
	return func(t T) V {
		t.Helper()
		Do(t, err)
		return v
	}
}

// Do fails the test if err is not nil.
func Do(t T, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}
