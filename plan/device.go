package plan

import (
	"slices"

	"penstock.example/schedule"
)

// recomputeLate moves the recomputations of some stages so that only transfers stand between them
// and their backwards. Otherwise the tensors that they save would be held during other
// computations. It changes the order of nothing else, so the program still runs to its end.
func recomputeLate(p *schedule.Program, stage func(int) bool) {
	for w, actions := range p.Workers {
		out := make([]schedule.Action, 0, len(actions))
		var late []schedule.Action
		for at, a := range actions {
			if a.Kind == schedule.Recompute && stage(a.Stage) && !only(actions[at+1:], a) {
				late = append(late, a)
				continue
			}
			out = append(out, a)
		}
		for _, r := range late {
			at := slices.IndexFunc(out, func(a schedule.Action) bool { return ends(r, a) })
			for at > 0 && out[at-1].Kind.Receive() && out[at-1].Stage == r.Stage &&
				out[at-1].MicroBatch == r.MicroBatch {
				at--
			}
			out = slices.Insert(out, max(at, 0), r)
		}
		p.Workers[w] = out
	}
}

// only reports whether no computation precedes the backward of a recomputation in a list.
func only(list []schedule.Action, r schedule.Action) bool {
	for _, a := range list {
		if !a.Kind.Transfer() {
			return ends(r, a)
		}
	}
	return false
}

// ends reports whether an action is the backward of a recomputed micro-batch, or the first part of
// it.
func ends(r, a schedule.Action) bool {
	return (a.Kind == schedule.Backward || a.Kind == schedule.BackwardInput) &&
		a.Stage == r.Stage && a.MicroBatch == r.MicroBatch
}
