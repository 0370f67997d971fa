package solver

import (
	"testing"

	"pgregory.net/rapid"
)

// TestEnvelopeIsTheMinimum compares, at every number of bytes, with the sums themselves.
func TestEnvelopeIsTheMinimum(t *testing.T) {
	fronts := rapid.Custom(func(t *rapid.T) (f front) {
		bytes, price := int64(0), int64(40)
		for range rapid.IntRange(0, 6).Draw(t, "breakpoints") {
			bytes, price = bytes+rapid.Int64Range(1, 5).Draw(t, "bytes"),
				price-rapid.Int64Range(1, 6).Draw(t, "price")
			f = append(f, breakpoint{bytes, price})
		}
		return f
	})
	small := rapid.Int64Range(0, 12)
	rapid.Check(t, func(t *rapid.T) {
		const most, none = 80, 1 << 20
		want := [most]int64{}
		for m := range want {
			want[m] = none
		}
		value := func(f front, bytes int64) int64 {
			price := int64(none)
			for _, b := range f {
				if b.bytes <= bytes {
					price = b.price
				}
			}
			return price
		}
		var e envelope
		for range rapid.IntRange(1, 5).Draw(t, "sums") {
			right, left := fronts.Draw(t, "right"), append(front{}, fronts.Draw(t, "left")...)
			if rapid.Bool().Draw(t, "free") {
				left = free
			}
			moveRight, moveLeft, price, from := small.Draw(t, "move right"), small.Draw(t, "move left"),
				small.Draw(t, "price"), small.Draw(t, "from")
			e.add(right, moveRight, left, moveLeft, price, from)
			for m := from; m < most; m++ {
				want[m] = min(want[m], price+value(right, m-moveRight)+value(left, m-moveLeft))
			}
		}
		for m := range want {
			if got := value(e.best, int64(m)); got != min(want[m], none) {
				t.Fatalf("%d with %d bytes, want %d: %v", got, m, want[m], e.best)
			}
		}
		for k := range e.best {
			if k > 0 && (e.best[k].bytes <= e.best[k-1].bytes || e.best[k].price >= e.best[k-1].price) {
				t.Fatalf("%v follows %v", e.best[k], e.best[k-1])
			}
		}
	})
}
