package data

import (
	"math"
	"testing"
)

// The generator is SplitMix64: its published values for the seed 1234567 (Rosetta Code,
// "Pseudo-random numbers/Splitmix64").
func TestStreamIsSplitMix64(t *testing.T) {
	s := stream(1234567)
	for i, want := range []uint64{6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821} {
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
	// Six equally likely values in 60,000 draws: 10,000 each, with a deviation of 91.
	var counts [6]int
	s := newStream(6)
	for range 60_000 {
		counts[s.below(6)]++
	}
	for value, count := range counts {
		if count < 9_500 || count > 10_500 {
			t.Errorf("below(6) is %d in %d of 60,000 draws", value, count)
		}
	}
}
