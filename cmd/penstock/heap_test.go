package main

import (
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
