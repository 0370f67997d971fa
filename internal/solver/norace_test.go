//go:build !race

package solver_test

const racing = false
