package data

import "math/bits"

// stream is a SplitMix64 generator (G. Steele, D. Lea, C. Flood, Fast splittable pseudorandom
// number generators, OOPSLA 2014). math/rand could change between versions of Go, and a resumed run
// needs the order of the original run.
type stream uint64

const golden = 0x9E3779B97F4A7C15 // 2^64 over the golden ratio: SplitMix64's increment

// Purposes, the first word of a stream's seed. Streams of different purposes are independent.
const (
	forOrder = iota + 1
	forAugment
	forSample
	forClass
)

// newStream returns a stream seeded by a sequence of words.
func newStream(words ...uint64) stream {
	state := uint64(0)
	for _, word := range words {
		state = mix((state ^ word) + golden)
	}
	return stream(state)
}

// mix is SplitMix64's output function, a bijection.
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

func (s *stream) next() uint64 {
	*s += golden
	return mix(uint64(*s))
}

// below returns a uniform number in [0, n), for n > 0 (D. Lemire, Fast random integer generation in
// an interval, ACM TOMACS 29, 2019).
func (s *stream) below(n uint64) uint64 {
	high, low := bits.Mul64(s.next(), n)
	if low < n {
		for threshold := -n % n; low < threshold; {
			high, low = bits.Mul64(s.next(), n)
		}
	}
	return high
}

// centred returns a number in [-1, 1), a multiple of 2^-23.
func (s *stream) centred() float32 { return float32(s.next()>>40)/(1<<23) - 1 }

// share returns a number in [0, 1), a multiple of 2^-53.
func (s *stream) share() float64 { return float64(s.next()>>11) / (1 << 53) }

// Permutation returns the order in which a shuffling Loader delivers n samples in an epoch: a
// Fisher-Yates shuffle of 0 to n-1. It is the same on every machine and in every version.
func Permutation(n int, seed uint64, epoch int) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	s := newStream(forOrder, seed, uint64(epoch))
	for i := n - 1; i > 0; i-- {
		j := s.below(uint64(i) + 1)
		order[i], order[j] = order[j], order[i]
	}
	return order
}
