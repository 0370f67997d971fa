package schedule

// InFlight returns, for each worker, the most micro-batches that its stages have in flight
// together. A micro-batch is in flight on a stage from its forward, or from its recomputation if it
// has one, to the end of its backward, of both parts. In a [BackwardOnly] program the forwards are
// done.
//
// This is the number of graphs held, with every activation that backward needs. It does not depend
// on durations, as the computations of a worker are in one order. The program must pass [Check].
func InFlight(p *Program) []int {
	recomputed := p.having(Recompute)
	most := make([]int, len(p.Workers))
	for w, actions := range p.Workers {
		now := 0
		again := func(a Action) bool { return recomputed[Action{Recompute, a.Stage, a.MicroBatch, 0}] }
		for _, a := range actions {
			if p.Phase == BackwardOnly && a.Kind.gradients() && !again(a) {
				now++
			}
		}
		most[w] = now
		for _, a := range actions {
			switch {
			case a.Kind == Recompute, a.Kind == Forward && !again(a):
				now++
			case a.Kind == Backward, a.Kind == BackwardWeight:
				now--
			}
			most[w] = max(most[w], now)
		}
	}
	return most
}
