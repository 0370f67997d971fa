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

func (p Pair) require(layer, what string, least int64) {
	require(p[0] >= least && p[1] >= least, "%s: %s is %dx%d; both sides must be at least %d", layer, what,
		p[0], p[1], least)
}
