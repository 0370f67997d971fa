package schedule

import "slices"

// LatestReceives returns, by id, for each receive the first action of the sender's worker that
// cannot start before the receive is done. Until then the sender may be ahead, and the sent value
// may still be waiting: between the two lie the actions during which it may wait, for any
// durations. If the worker never has to wait for it, it is First of the next worker. For other
// actions it is -1.
//
//	worker 0  0F0 0F0>1 0F1 0F1>1 1>0B0 0B0 ..          0>1F0: 1>0B0, which needs 1B0>0, 1B0, 1F0 and 0>1F0
//	worker 1  0>1F0 1F0 0>1F1 1F1 1B0 1B0>0 ..          1>0B0: none, as worker 1 needs nothing of worker 0 any more
func (g *Graph) LatestReceives() []int {
	out := make([]int, len(g.Actions))
	for id := range out {
		out[id] = -1
	}
	order := make([]int, 0, len(g.Actions))
	g.numbered.advance(false, func(id, _ int, _ []int) { order = append(order, id) })
	slices.Reverse(order)
	sent := make([][]int, len(g.First)-1) // by worker: the receives of what it sends
	for id, a := range g.Actions {
		if a.Kind.Receive() {
			if from, ok := g.IndexOf(a.Matching()); ok {
				sent[g.Worker[from]] = append(sent[g.Worker[from]], id)
			}
		}
	}
	first := make([]int, len(g.Actions)) // by id: the first action of the worker that needs it
	for w, receives := range sent {
		if len(receives) == 0 {
			continue
		}
		for id := range first {
			first[id] = g.First[w+1]
		}
		for _, id := range order {
			needs := first[id]
			if g.Worker[id] == w {
				needs = id
			}
			for _, dep := range g.Deps[id] {
				first[dep] = min(first[dep], needs)
			}
			if id > g.First[g.Worker[id]] {
				first[id-1] = min(first[id-1], needs)
			}
		}
		for _, id := range receives {
			out[id] = first[id]
		}
	}
	return out
}
