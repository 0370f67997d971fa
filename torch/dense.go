package torch

import "slices"

// Dense says of a tensor with these sizes and strides whether its elements fill its memory, each once, in
// some order of dimensions. Dimensions along which it repeats itself, with stride 0, do not count: the
// memory is that of one element of them.
func Dense(shape, strides []int64) bool {
	var order []int
	for d, n := range shape {
		if n == 0 {
			return true
		}
		if n > 1 && strides[d] != 0 {
			order = append(order, d)
		}
	}
	slices.SortFunc(order, func(a, b int) int { return int(strides[a] - strides[b]) })
	next := int64(1)
	for _, d := range order {
		if strides[d] != next {
			return false
		}
		next *= shape[d]
	}
	return true
}
