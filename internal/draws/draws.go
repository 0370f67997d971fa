// Package draws sets the number of draws of tests that use rapid: 25, or rapid's own 100 if
// PENSTOCK_TEST=full. -rapid.checks overrides both. Every test package that uses rapid imports it.
//
//	PENSTOCK_TEST=full go test -count=1 ./pipe
//
// Without -count=1 go test may repeat the result of a quick run: it does not notice the variable.
package draws

import (
	"flag"
	"fmt"
	"os"
	"testing"

	_ "pgregory.net/rapid" // defines the flag
)

// usual is the number of draws of a quick run.
const usual = 25

// Full is set if tests may take long: all networks, all sizes, many draws.
var Full = os.Getenv("PENSTOCK_TEST") == "full"

func init() {
	if !Full {
		set(usual)
	}
}

// Pick returns quick, or full if Full is set.
func Pick[T any](quick, full T) T {
	if Full {
		return full
	}
	return quick
}

// Checks sets the number of draws until t ends: quick, or full if Full is set. A number given on
// the command line stays.
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

// set is not flag.Set, after which flag.Visit would report the flag as given.
func set(n any) {
	if err := flag.Lookup(name).Value.Set(fmt.Sprint(n)); err != nil {
		panic(err)
	}
}

// Many reports whether at least 15 cases are drawn. A test that wants to see a likely case asks it.
func Many() bool { return flag.Lookup(name).Value.(flag.Getter).Get().(int) >= 15 }
