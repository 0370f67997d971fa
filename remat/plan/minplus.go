package plan

// minPlusTwo sets out[k] to the least of out[k] and a[k] + b[k] + c. All three have one length.
func minPlusTwo(out, a, b []float32, c float32) {
	a, b = a[:len(out)], b[:len(out)]
	for k, was := range out {
		if v := a[k] + b[k] + c; v < was {
			out[k] = v
		}
	}
}

// minPlusOne sets out[k] to the least of out[k] and a[k] + c. Both have one length.
func minPlusOne(out, a []float32, c float32) {
	a = a[:len(out)]
	for k, was := range out {
		if v := a[k] + c; v < was {
			out[k] = v
		}
	}
}
