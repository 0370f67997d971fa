package nn

import "fmt"

// A constructor that is called with values no layer can have panics: it is a mistake in the
// program, and the stack shows where. The message names the value and says what would do.

func require(ok bool, format string, args ...any) {
	if !ok {
		panic("nn: " + fmt.Sprintf(format, args...))
	}
}

func requirePositive(layer, what string, n int64) {
	require(n > 0, "%s: %s is %d; it must be at least 1", layer, what, n)
}

func requireProbability(layer, what string, p float64) {
	require(p >= 0 && p <= 1, "%s: %s is %v; it must be from 0 to 1", layer, what, p)
}
