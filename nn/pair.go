package nn

// Pair is a size in two dimensions: height, then width.
type Pair [2]int64

// Square is a Pair of equal sides.
func Square(n int64) Pair { return Pair{n, n} }

// or is p, or other where p is the zero value.
func (p Pair) or(other Pair) Pair {
	if p == (Pair{}) {
		return other
	}
	return p
}
