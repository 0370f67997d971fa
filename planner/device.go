package planner

import (
	"slices"

	"penstock.example/remat"
	"penstock.example/schedule"
)

// moment is an action of a worker, and the bytes that its device holds meanwhile outside of
// computations: values made that may wait to be received, values received that wait to be used, and
// tensors left between the two parts of backwards. It is an upper bound: these may share memory
// with a computation, or with each other (see replay).
type moment struct {
	schedule.Action
	waits int64
}

func (p *Plan) moments(g *schedule.Graph, latest []int, worker int) []moment {
	first, end := g.First[worker], g.First[worker+1]
	change := make([]int64, end-first+1)
	wait := func(from, to int, bytes int64) {
		if from < to {
			change[from-first] += bytes
			change[to-first] -= bytes
		}
	}
	for id := first; id < end; id++ {
		a := g.Actions[id]
		if a.Kind == schedule.BackwardInput {
			second := a
			second.Kind = schedule.BackwardWeight
			if last, ok := g.IndexOf(second); ok {
				fp := p.Stages[a.Stage].footprint(a.MicroBatch)
				wait(id+1, last+1, deferredBytes(fp))
				if a.MicroBatch == 0 && !p.Stages[a.Stage].memory.Gradients {
					wait(last, end, secondWeights(fp))
				}
			}
		}
		if !a.Kind.Transfer() {
			continue
		}
		size := p.moved(a)
		if size == 0 {
			continue
		}
		if a.Kind.Send() {
			if receive, ok := g.IndexOf(a.Matching()); ok {
				wait(computing(g, a)+1, max(id+1, latest[receive]), size)
			}
			continue
		}
		wait(id, computing(g, a), size)
	}
	out := make([]moment, 0, end-first)
	waits := int64(0)
	for id := first; id < end; id++ {
		waits += change[id-first]
		out = append(out, moment{g.Actions[id], waits})
	}
	return out
}

// computing returns the id of the computation that makes a sent value, or uses a received one.
func computing(g *schedule.Graph, a schedule.Action) int {
	kinds := []schedule.Kind{schedule.Backward, schedule.BackwardInput}
	if a.Kind == schedule.SendActivation || a.Kind == schedule.ReceiveActivation {
		kinds = []schedule.Kind{schedule.Forward}
	}
	for _, kind := range kinds {
		if id, ok := g.IndexOf(schedule.Action{Kind: kind, Stage: a.Stage, MicroBatch: a.MicroBatch}); ok {
			return id
		}
	}
	return -1
}

// moved returns the bytes that a transfer moves.
func (p *Plan) moved(a schedule.Action) (bytes int64) {
	s := &p.Stages[a.Stage]
	fp := s.footprint(a.MicroBatch)
	of, at, parcel := fp.Inputs, len(fp.Units), fp.Leaves
	switch b := &fp.Backward[remat.Adds]; a.Kind {
	case schedule.ReceiveActivation:
		at, parcel = 0, fp.Arrives
	case schedule.ReceiveGradient:
		of, parcel = b.Gradients, b.Arrives
	case schedule.SendGradient:
		of, at, parcel = b.Gradients, 0, b.Leaves
	}
	var seen []int
	for _, m := range p.moves(a, parcel) {
		if b := of.At[at][m.at]; b >= 0 && !slices.Contains(seen, b) {
			seen = append(seen, b)
			bytes += of.Bytes[b]
		}
	}
	return bytes
}

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
