package shim

// SetHopEvery changes how many recomputations nest on one thread, and returns what it was.
func SetHopEvery(n int) (was int) {
	was, hopEvery = hopEvery, n
	return was
}
