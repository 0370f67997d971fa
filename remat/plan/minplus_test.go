package plan

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestMinPlusAgrees compares the loops in vector instructions with a plain one, bit by bit, at all lengths around those of their strides, and looks that nothing beyond the slices is written.
func TestMinPlusAgrees(t *testing.T) {
	number := rapid.OneOf(rapid.Float32Range(0, 2), rapid.Just(float32(math.Inf(1))), rapid.Just(float32(0)))
	for _, way := range waysToMinPlus() {
		t.Run(way.name, func(t *testing.T) {
			defer way.use()()
			rapid.Check(t, func(t *rapid.T) {
				n := rapid.IntRange(0, 200).Draw(t, "n")
				whole := rapid.SliceOfN(number, n+40, n+40).Draw(t, "out")
				a, b := rapid.SliceOfN(number, n, n).Draw(t, "a"), rapid.SliceOfN(number, n, n).Draw(t, "b")
				c := number.Draw(t, "c")
				one, two := slices.Clone(whole), slices.Clone(whole)
				for k := range n {
					one[20+k] = min(whole[20+k], a[k]+c)
					two[20+k] = min(whole[20+k], a[k]+b[k]+c)
				}
				got := slices.Clone(whole)
				minPlusOne(got[20:20+n], a, c)
				if !slices.Equal(got, one) {
					t.Fatalf("minPlusOne of %d: %v; want %v", n, got, one)
				}
				got = slices.Clone(whole)
				minPlusTwo(got[20:20+n], a, b, c)
				if !slices.Equal(got, two) {
					t.Fatalf("minPlusTwo of %d: %v; want %v", n, got, two)
				}
			})
		})
	}
}

type wayToMinPlus struct {
	name string
	use  func() (restore func())
}
