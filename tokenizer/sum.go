package tokenizer

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
)

// Sum returns the SHA-256 of the vocabulary and the merges as 64 hexadecimal digits: the tokens by their
// numbers, and the merges in their order. It is the same for a tokenizer.json and for the vocab.json and
// merges.txt of the same tokenizer. How text is split and normalised is not in it.
func (t *Tokenizer) Sum() string {
	h := sha256.New()
	for id, token := range t.tokens {
		fmt.Fprintf(h, "%d %q\n", id, token)
	}
	merges := t.model.merges
	pairs := slices.SortedFunc(maps.Keys(merges), func(a, b [2]int32) int { return cmp.Compare(merges[a].rank, merges[b].rank) })
	for _, pair := range pairs {
		fmt.Fprintf(h, "%d %d\n", pair[0], pair[1])
	}
	return hex.EncodeToString(h.Sum(nil))
}
