package nn

// AsOnCUDA has layers and losses compute by the operators that CUDA devices have instead of their own,
// until restore is called.
func AsOnCUDA() (restore func()) {
	was := needsOrder
	needsOrder = func(*Ctx) bool { return true }
	return func() { needsOrder = was }
}
