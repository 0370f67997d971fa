package schedule

// InFlight returns, for each worker, the most micro-batches that its stages have in flight
// together. A micro-batch is in flight on a stage from its forward, or from its recomputation if it
// has one, to the end of its backward, of both parts. In a [BackwardOnly] program the forwards are
// done. A micro-batch on a stage counts size(stage); with nil it counts 1.
//
// This is the number of graphs held, with every activation that backward needs. It does not depend
// on durations, as the computations of a worker are in one order. The program must pass [Check].
func InFlight(p *Program, size func(stage int) int64) []int64 {
	recomputed := p.having(Recompute)
	most := make([]int64, len(p.Workers))
	for w, actions := range p.Workers {
		now := int64(0)
		add := func(a Action, n int64) {
			if size != nil {
				n *= size(a.Stage)
			}
			now += n
			most[w] = max(most[w], now)
		}
		again := func(a Action) bool { return recomputed[Action{Recompute, a.Stage, a.MicroBatch, 0}] }
		for _, a := range actions {
			if p.Phase == BackwardOnly && a.Kind.gradients() && !again(a) {
				add(a, 1)
			}
		}
		for _, a := range actions {
			switch {
			case a.Kind == Recompute, a.Kind == Forward && !again(a):
				add(a, 1)
			case a.Kind == Backward, a.Kind == BackwardWeight:
				add(a, -1)
			}
		}
	}
	return most
}
