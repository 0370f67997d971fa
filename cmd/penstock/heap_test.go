package main

import (
	"runtime/debug"
	"testing"
)

func TestGarbageIsBounded(t *testing.T) {
	for _, tt := range []struct {
		heap int64
		want int
	}{{0, 100}, {1 << 20, 100}, {16 << 20, 100}, {32 << 20, 50}, {160 << 20, 10}, {1 << 40, 5}} {
		if got := percentFor(tt.heap); got != tt.want {
			t.Errorf("a heap of %d: %d percent, want %d", tt.heap, got, tt.want)
		}
	}
}

// What a run sets for itself does not outlive it, and what the user has set stays.
func TestGarbageIsTheUsersChoice(t *testing.T) {
	was := debug.SetGCPercent(77)
	defer debug.SetGCPercent(was)
	ballast := make([]byte, 64<<20)
	current := func() int { n := debug.SetGCPercent(-1); debug.SetGCPercent(n); return n }
	for _, tt := range []struct {
		variable string
		user     bool
	}{{"", false}, {"77", true}} {
		t.Setenv("GOGC", tt.variable)
		t.Setenv("GOMEMLIMIT", "")
		restore := limitGarbage()
		if got := current(); (got == 77) != tt.user || got > 77 {
			t.Errorf("GOGC=%s: %d percent during a run", tt.variable, got)
		}
		restore()
		if got := current(); got != 77 {
			t.Errorf("GOGC=%s: %d percent after a run", tt.variable, got)
		}
	}
	clear(ballast)
}
