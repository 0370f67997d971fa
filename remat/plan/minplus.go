package plan

// The inner loops of the grid. Rows are functions of memory; the best way to split an interval in two is a sum of two rows, each at its own offset, and the least of all such sums. The loops
// are written in plain Go here, and in the vector instructions of amd64 beside; all give the same bits, since all add in the same order.

// minPlusTwo sets out[k] to the least of out[k] and a[k] + b[k] + c. a and b are as long as out, or longer.
func minPlusTwo(out, a, b []float32, c float32) {
	a, b = a[:len(out)], b[:len(out)]
	if vector(out, a, b, c) {
		return
	}
	for k, was := range out {
		out[k] = min(was, a[k]+b[k]+c)
	}
}

// minPlusOne sets out[k] to the least of out[k] and a[k] + c. a is as long as out, or longer.
func minPlusOne(out, a []float32, c float32) {
	a = a[:len(out)]
	if vectorOne(out, a, c) {
		return
	}
	for k, was := range out {
		out[k] = min(was, a[k]+c)
	}
}
