package tokenizer

import (
	"cmp"
	"container/heap"
	"fmt"
	"slices"
)

// model is a vocabulary and its merges.
type model struct {
	vocabulary map[string]int32
	merges     map[[2]int32]merge
	wordsFirst bool // a piece in the vocabulary is one token, without merges

	// Characters that the vocabulary lacks become their bytes, as tokens <0x00> to <0xFF>, or unknown.
	byteFallback bool
	unknown      int32 // -1 is none
	fuseUnknown  bool  // several in a row are one token
}

// merge is the merge of two tokens. Lower ranks are merged first.
type merge struct {
	rank   int
	merged int32
}

// encode returns the tokens of a piece, and the first character missing in the vocabulary, or -1.
func (m *model) encode(piece string) (ids []int32, missing rune) {
	if id, ok := m.vocabulary[piece]; ok && m.wordsFirst {
		return []int32{id}, -1
	}
	afterUnknown := false
	for _, r := range piece {
		id, ok := m.vocabulary[string(r)]
		tokens := []int32{id}
		if !ok {
			tokens = m.byteTokens(string(r))
		}
		unknown := tokens == nil
		if unknown && m.unknown < 0 {
			return nil, r
		} else if unknown && !(afterUnknown && m.fuseUnknown) {
			tokens = []int32{m.unknown}
		}
		ids, afterUnknown = append(ids, tokens...), unknown
	}
	return m.merge(ids), -1
}

// byteTokens returns the tokens of the bytes of a character, or nil if they are not in the vocabulary.
func (m *model) byteTokens(char string) (ids []int32) {
	for i := 0; i < len(char) && m.byteFallback; i++ {
		id, ok := m.vocabulary[fmt.Sprintf("<0x%02X>", char[i])]
		if !ok {
			return nil
		}
		ids = append(ids, id)
	}
	return ids
}

// byteOfToken returns the byte of a token such as <0x0A>.
func (m *model) byteOfToken(token string) (b byte, ok bool) {
	if m.byteFallback && len(token) == len("<0x0A>") {
		_, err := fmt.Sscanf(token, "<0x%02X>", &b)
		return b, err == nil
	}
	return 0, false
}

// merge merges the pair of the lowest rank, the first of equal ones, until no pair has a merge. It changes
// ids. A heap has the current pairs and some outdated ones, so that n tokens take O(n log n) time.
func (m *model) merge(ids []int32) []int32 {
	next, previous := make([]int, len(ids)), make([]int, len(ids))
	var pairs pairHeap
	addPair := func(at int) {
		if at < 0 || next[at] >= len(ids) {
			return
		}
		if found, ok := m.merges[[2]int32{ids[at], ids[next[at]]}]; ok {
			pairs = append(pairs, pair{found.rank, at, ids[at], ids[next[at]], found.merged})
		}
	}
	for i := range ids {
		next[i], previous[i] = i+1, i-1
	}
	for i := range ids {
		addPair(i)
	}
	heap.Init(&pairs)
	const gone = -1 // in ids: a token merged into the previous one
	for len(pairs) > 0 {
		p := heap.Pop(&pairs).(pair)
		if ids[p.at] != p.left || next[p.at] >= len(ids) || ids[next[p.at]] != p.right {
			continue // outdated
		}
		right := next[p.at]
		ids[p.at], ids[right] = p.merged, gone
		if next[p.at] = next[right]; next[p.at] < len(ids) {
			previous[next[p.at]] = p.at
		}
		for _, at := range []int{previous[p.at], p.at} {
			before := len(pairs)
			if addPair(at); len(pairs) > before {
				heap.Fix(&pairs, before)
			}
		}
	}
	return slices.DeleteFunc(ids, func(id int32) bool { return id == gone })
}

// pair is two neighbouring tokens with a merge.
type pair struct {
	rank, at            int // at is the index of left
	left, right, merged int32
}

type pairHeap []pair

func (h pairHeap) Len() int           { return len(h) }
func (h pairHeap) Less(i, j int) bool { return cmp.Or(h[i].rank-h[j].rank, h[i].at-h[j].at) < 0 }
func (h pairHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *pairHeap) Push(x any)        { *h = append(*h, x.(pair)) }
func (h *pairHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}
