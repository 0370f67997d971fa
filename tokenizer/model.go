package tokenizer

import (
	"cmp"
	"container/heap"
	"slices"
)

// model is a vocabulary and its merges.
type model struct {
	vocabulary map[string]int32
	merges     map[[2]int32]merge
	wordsFirst bool // a piece that is a token is that token, whatever the merges
}

// merge says what two tokens become, and when: lower ranks are merged first.
type merge struct {
	rank   int
	merged int32
}

// encode returns the tokens of a piece, and the first character that the vocabulary lacks, or -1.
func (m *model) encode(piece string) (ids []int32, lacking rune) {
	if id, ok := m.vocabulary[piece]; ok && m.wordsFirst {
		return []int32{id}, -1
	}
	for _, r := range piece {
		id, ok := m.vocabulary[string(r)]
		if !ok {
			return nil, r
		}
		ids = append(ids, id)
	}
	return m.merge(ids), -1
}

// merge merges pairs until no pair has a merge: each time the pair of the lowest rank, and of equal
// ones the first. It changes ids. A heap has the current pairs and some former ones, so that n
// tokens take n·log(n), also in a piece of a million letters.
func (m *model) merge(ids []int32) []int32 {
	next, previous := make([]int, len(ids)), make([]int, len(ids))
	var pairs pairHeap
	look := func(at int) {
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
		look(i)
	}
	heap.Init(&pairs)
	const gone = -1 // in ids: a token that was merged into the one before it
	for len(pairs) > 0 {
		p := heap.Pop(&pairs).(pair)
		if ids[p.at] != p.left || next[p.at] >= len(ids) || ids[next[p.at]] != p.right {
			continue // one of the two was merged with another in the meantime
		}
		right := next[p.at]
		ids[p.at], ids[right] = p.merged, gone
		if next[p.at] = next[right]; next[p.at] < len(ids) {
			previous[next[p.at]] = p.at
		}
		for _, at := range []int{previous[p.at], p.at} {
			before := len(pairs)
			if look(at); len(pairs) > before {
				heap.Fix(&pairs, before)
			}
		}
	}
	return slices.DeleteFunc(ids, func(id int32) bool { return id == gone })
}

// pair is two neighbours that have a merge, the left one at a place.
type pair struct {
	rank, at            int
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
