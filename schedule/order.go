package schedule

import "slices"

// order lists the computations of each worker: forwards, recomputations, backwards and their parts.
// A schedule decides it. The places of sends and receives follow from it.
type order [][]Action

// fill gives the program its actions: the computations in their order, with their transfers.
//
// A send directly follows the computation that made its value, to the neighbour first, which wants
// it first. A receive stands directly before the computation that uses its value, receives from
// afar first, as they can start first. Where workers would wait for each other on links that meet,
// a receive stands earlier; see meet.
func (p *Program) fill(o order) {
	skips := fanOf(p.Skips)
	for w, computations := range o {
		list := make([]Action, 0, 3*len(computations))
		for _, a := range computations {
			s, i := a.Stage, a.MicroBatch
			switch {
			case a.Kind == Forward:
				for _, from := range skips.from[s] {
					list = append(list, Action{ReceiveActivation, s, i, from})
				}
				if s > 0 {
					list = append(list, Action{ReceiveActivation, s, i, s - 1})
				}
				list = append(list, a)
				if s < p.Stages-1 {
					list = append(list, Action{SendActivation, s, i, s + 1})
				}
				for _, to := range skips.to[s] {
					list = append(list, Action{SendActivation, s, i, to})
				}
			case a.Kind.gradients():
				for _, to := range slices.Backward(skips.to[s]) {
					list = append(list, Action{ReceiveGradient, s, i, to})
				}
				if s < p.Stages-1 {
					list = append(list, Action{ReceiveGradient, s, i, s + 1})
				}
				list = append(list, a)
				if s > 0 {
					list = append(list, Action{SendGradient, s, i, s - 1})
				}
				for _, from := range slices.Backward(skips.from[s]) {
					list = append(list, Action{SendGradient, s, i, from})
				}
			default:
				list = append(list, a)
			}
		}
		p.Workers[w] = list
	}
}
