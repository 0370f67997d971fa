package draws

import (
	"os"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func checked(t *testing.T) int {
	n := 0
	rapid.Check(t, func(*rapid.T) { n++ })
	return n
}

// A process may run a test several times (go test -count). Each time Checks sets the number.
func TestChecks(t *testing.T) {
	given := func(arg string) bool { return strings.Contains(arg, "rapid.checks") }
	if testing.Short() || slices.ContainsFunc(os.Args, given) {
		t.Skip("the command line says how often rapid checks")
	}
	defer func(full bool) { Full = full }(Full)
	before := checked(t)
	if !Full && before != 25 {
		t.Errorf("rapid checked %d times, want 25", before)
	}
	for _, want := range []int{3, 4} {
		Full = want == 4
		t.Run("", func(t *testing.T) {
			Checks(t, 3, 4)
			if n := checked(t); n != want {
				t.Errorf("rapid checked %d times, want %d", n, want)
			}
		})
		if n := checked(t); n != before {
			t.Errorf("after the test rapid checked %d times, want %d", n, before)
		}
	}
}
