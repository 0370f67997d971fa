package solver

// The inner loops of the grid. A branch that is hardly ever taken is cheaper than min of floats,
// which has NaN and -0 to see to.

// minPlusTwo sets out[k] to the least of out[k] and a[k] + b[k] + c. a and b are as long as out, or
// longer.
func minPlusTwo(out, a, b []float32, c float32) {
	a, b = a[:len(out)], b[:len(out)]
	for k, was := range out {
		if sum := a[k] + b[k] + c; sum < was {
			out[k] = sum
		}
	}
}

// minPlusOne sets out[k] to the least of out[k] and a[k] + c. a is as long as out, or longer.
func minPlusOne(out, a []float32, c float32) {
	a = a[:len(out)]
	for k, was := range out {
		if sum := a[k] + c; sum < was {
			out[k] = sum
		}
	}
}
