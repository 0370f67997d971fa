package schedule

// InFlight returns, for each worker, the most micro-batches that its stages have in flight
// together: the number of autograd graphs held. A micro-batch is in flight on a stage from its
// forward, or from its recomputation if it has one, to the end of its backward, of both parts. In a
// [BackwardOnly] program the forwards are done. The program must pass [Check].
func InFlight(p *Program) []int {
	recomputed := p.actionsOf(Recompute)
	most := make([]int, len(p.Workers))
	for w, actions := range p.Workers {
		now := 0
		recomputes := func(a Action) bool { return recomputed[Action{Recompute, a.Stage, a.MicroBatch, 0}] }
		for _, a := range actions {
			if p.Phase == BackwardOnly && a.Kind.gradients() && !recomputes(a) {
				now++
			}
		}
		most[w] = now
		for _, a := range actions {
			switch {
			case a.Kind == Recompute, a.Kind == Forward && !recomputes(a):
				now++
			case a.Kind == Backward, a.Kind == BackwardWeight:
				now--
			}
			most[w] = max(most[w], now)
		}
	}
	return most
}
