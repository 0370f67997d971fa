package pipe

// rows is a range of rows of a mini-batch.
type rows struct{ start, length int64 }

// split cuts n rows as evenly as possible into min(chunks, n) micro-batches, longer ones first.
// Inference may have no rows, which are one empty micro-batch.
func split(n int64, chunks int) []rows {
	m := max(min(int64(chunks), n), 1)
	out := make([]rows, m)
	start := int64(0)
	for i := range out {
		length := n / m
		if int64(i) < n%m {
			length++
		}
		out[i] = rows{start, length}
		start += length
	}
	return out
}
