//go:build race

package solver_test

// racing says that the race detector is on, which makes everything many times slower.
const racing = true
