package planner

import (
	"slices"

	"penstock/remat"
	"penstock/schedule"
)

// Bytes is what a stage takes for a micro-batch, predicted, without what others hold.
type Bytes struct {
	Forward   int64 // the most during the forward
	Held      int64 // from there to the recomputation or backward
	Recompute int64 // the most during the recomputation; 0 where there is none
	Backward  int64 // the most during the backward
}

// moment is an action of a worker with what its device holds meanwhile that belongs to no
// computation: values that were made and may wait to be received, and that were received and wait
// to be used.
//
//	worker 0   0F1  0F1>1  0F2  ...   1>0B0  0B0        0F1 has made x, and 1>0B0 cannot start
//	waits           x      x    x     y                  before x was received
type moment struct {
	schedule.Action
	waits int64
}

// moments lists a worker's actions. bytes is the size of what a send leaves on the sender's device
// and of what a receive adds to the receiver's.
func moments(g *schedule.Graph, latest []int, worker int, bytes func(schedule.Action) int64) []moment {
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
		if !a.Kind.Transfer() {
			continue
		}
		size := bytes(a)
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

// computing is the id of the computation that makes what is sent, or uses what is received.
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

// sizes is what moves between a stage and others for a micro-batch, in bytes.
type sizes struct {
	output   int64 // to the next stage
	returned int64 // gradients of the input, to the stage before
	skipsIn  int64 // skips that it receives, and the gradients of these that it sends
	skipsOut int64 // skips that it sends, and the gradients of these that it receives
}

// sizesOf is what moves between a stage and others; nil if it is not known.
func (p *Plan) sizesOf(stage int) *sizes {
	if p.Stages[stage].Policy != Optimal {
		return nil
	}
	return &p.Stages[stage].sizes
}

// moved is the size of what an action moves between stages. of is nil for a stage whose sizes are not
// known. Those of the stage that sends are.
func moved(a schedule.Action, of func(stage int) *sizes) int64 {
	from, to := a.Stage, a.Peer // in the direction of the forward
	if from > to {
		from, to = to, from
	}
	forward := a.Kind == schedule.SendActivation || a.Kind == schedule.ReceiveActivation
	leave, arrive := of(from), of(to)
	var size int64
	switch {
	case leave == nil && arrive == nil:
		return 0
	case leave == nil:
		size = arrive.skipsIn
	case arrive == nil:
		size = leave.skipsOut
	default:
		size = min(leave.skipsOut, arrive.skipsIn)
	}
	switch {
	case to == from+1 && forward && leave != nil:
		size += leave.output
	case to == from+1 && !forward && arrive != nil:
		size += arrive.returned
	}
	return size
}

// savesOutput says that the output of the stage is a part of what it holds for the backward.
func (m MicroBatch) savesOutput() bool {
	forward, _, _ := Split(m.Ops)
	if len(forward) < 2 {
		return false
	}
	return forward[len(forward)-2].Kind == remat.ForwardSave
}

// peak is the most bytes that a device holds beside its base, whichever stage runs ahead.
func (p *Plan) peak(g *schedule.Graph, latest []int, device int) (most int64) {
	alone := func(stage, microBatch int) bool {
		return !p.Stages[stage].MicroBatches[microBatch].savesOutput()
	}
	list := moments(g, latest, device, func(a schedule.Action) int64 {
		size := moved(a, p.sizesOf)
		switch here := p.Stages[a.Peer].Device == device; {
		case a.Kind == schedule.SendActivation && a.Peer == a.Stage+1 && !alone(a.Stage, a.MicroBatch):
			return size - p.Stages[a.Stage].output // which is a part of what the stage holds
		case a.Kind == schedule.ReceiveActivation && a.Peer == a.Stage-1 && here && !alone(a.Peer, a.MicroBatch):
			return size - p.Stages[a.Peer].output
		}
		return size
	})
	held, made := int64(0), int64(0)
	now := map[[2]int]int64{} // what each micro-batch in flight holds
	for _, m := range list {
		at := [2]int{m.Stage, m.MicroBatch}
		s := &p.Stages[m.Stage]
		own := s.MicroBatches[m.MicroBatch].Bytes
		if m.Stage > 0 && p.Stages[m.Stage-1].Device == device && !alone(m.Stage-1, m.MicroBatch) {
			// x(0) is a part of what the stage before holds.
			own.Forward, own.Held, own.Recompute, own.Backward = own.Forward-s.input, own.Held-s.input, own.Recompute-s.input, own.Backward-s.input
		}
		switch m.Kind {
		case schedule.Forward:
			most = max(most, m.waits+made+held+own.Forward)
			now[at] = own.Held
			held += own.Held
		case schedule.Recompute:
			most = max(most, m.waits+made+held-now[at]+own.Recompute)
		case schedule.Backward, schedule.BackwardInput:
			held -= now[at]
			delete(now, at)
			most = max(most, m.waits+made+held+own.Backward)
			if m.MicroBatch == 0 {
				made += s.made
			}
		default:
			most = max(most, m.waits+made+held)
		}
	}
	return most
}

// recomputeLate moves the recomputations of some stages so that only transfers stand between them
// and their backwards. Otherwise what they save would be there during other computations. It
// changes the order of nothing else, so the program can still run to its end.
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
			for at > 0 && out[at-1].Kind.Receive() && out[at-1].Stage == r.Stage && out[at-1].MicroBatch == r.MicroBatch {
				at--
			}
			out = slices.Insert(out, max(at, 0), r)
		}
		p.Workers[w] = out
	}
}

// only says that no computation precedes the backward of a recomputation in a list.
func only(list []schedule.Action, r schedule.Action) bool {
	for _, a := range list {
		if !a.Kind.Transfer() {
			return ends(r, a)
		}
	}
	return false
}

// ends says that an action is the backward of what was recomputed, or the first part of it.
func ends(r, a schedule.Action) bool {
	return (a.Kind == schedule.Backward || a.Kind == schedule.BackwardInput) && a.Stage == r.Stage && a.MicroBatch == r.MicroBatch
}
