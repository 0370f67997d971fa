// Package draws sets the number of draws of rapid's tests: 25, or rapid's own 100 if PENSTOCK_TEST=full. The
// flag -rapid.checks overrides both. Every test package that uses rapid imports it.
//
//	PENSTOCK_TEST=full go test -count=1 ./pipe
//
// Without -count=1 go test may print the cached result of a quick run.
package draws

import (
	"flag"
	"fmt"
	"os"
	"testing"

	_ "pgregory.net/rapid" // defines the flag
)

// Full is set if tests may take long: all networks, all sizes, many draws.
var Full = os.Getenv("PENSTOCK_TEST") == "full"

func init() {
	if !Full {
		set(25)
	}
}

func Pick[T any](quick, full T) T {
	if Full {
		return full
	}
	return quick
}

// Checks sets the number of draws until t ends, unless the command line sets it.
func Checks(t testing.TB, quick, full int) {
	t.Helper()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	if given {
		return
	}
	before := flag.Lookup(name).Value.String()
	set(Pick(quick, full))
	t.Cleanup(func() { set(before) })
}

const name = "rapid.checks"

// set avoids flag.Set, after which flag.Visit would report the flag.
func set(n any) {
	if err := flag.Lookup(name).Value.Set(fmt.Sprint(n)); err != nil {
		panic(err)
	}
}
