package plan

// waysToMinPlus are all that this processor can do.
func waysToMinPlus() (ways []wayToMinPlus) {
	best := available
	for _, have := range []instructions{plain, avx2, avx512} {
		if have <= best {
			name := map[instructions]string{plain: "plain", avx2: "avx2", avx512: "avx512"}[have]
			ways = append(ways, wayToMinPlus{name, func() func() {
				available = have
				return func() { available = best }
			}})
		}
	}
	return ways
}
