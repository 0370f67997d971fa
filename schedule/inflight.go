package schedule

import "penstock.example/internal/arg"

// InFlight returns, for each worker, the most micro-batches that its stages have in flight
// together. A micro-batch is in flight on a stage from its forward, or from its recomputation if it
// has one, to the end of its backward, of both parts. In a [BackwardOnly] program the forwards are
// done. A micro-batch on a stage counts size(stage); with nil it counts 1.
//
// This is the number of graphs held, with every activation that backward needs. It does not depend
// on durations, as the computations of a worker are in one order. The program must pass [Check].
func InFlight(p *Program, size func(stage int) int64) []int64 {
	arg.Must(p, "schedule: InFlight: the program", "one such as GPipe or Parse makes")
	if size == nil {
		size = func(int) int64 { return 1 }
	}
	most := make([]int64, len(p.Workers))
	for w, actions := range p.Workers {
		recomputed, now := map[[2]int]bool{}, int64(0)
		for _, a := range actions {
			if a.Kind == Recompute {
				recomputed[[2]int{a.Stage, a.MicroBatch}] = true
			}
		}
		if p.Phase == BackwardOnly {
			for _, a := range actions {
				if (a.Kind == Backward || a.Kind == BackwardInput) &&
					!recomputed[[2]int{a.Stage, a.MicroBatch}] {
					now += size(a.Stage)
				}
			}
		}
		most[w] = now
		for _, a := range actions {
			switch {
			case a.Kind == Recompute, a.Kind == Forward && !recomputed[[2]int{a.Stage, a.MicroBatch}]:
				now += size(a.Stage)
			case a.Kind == Backward, a.Kind == BackwardWeight:
				now -= size(a.Stage)
			}
			most[w] = max(most[w], now)
		}
	}
	return most
}
