package data

import (
	"math"
	"testing"
)

// The generator is SplitMix64: its published values for the seed 1234567 (Rosetta Code,
// "Pseudo-random numbers/Splitmix64").
func TestStreamIsSplitMix64(t *testing.T) {
	s := stream(1234567)
	for i, want := range []uint64{6457827717110365317, 3203168211198807973, 9817491932198370423,
		4593380528125082431, 16408922859458223821} {
		if got := s.next(); got != want {
			t.Errorf("draw %d is %d, want %d", i, got, want)
		}
	}
}

// A bound just above 2^63 rejects almost half of the draws: the path that small bounds never take.
func TestBelow(t *testing.T) {
	for _, n := range []uint64{1, 2, 3, 1000, 1<<63 + 1, math.MaxUint64} {
		s := newStream(n)
		for range 1000 {
			if x := s.below(n); x >= n {
				t.Fatalf("below(%d) = %d", n, x)
			}
		}
	}
}
