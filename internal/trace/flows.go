package trace

import "penstock.example/schedule"

// flows returns the ends of arrows at each event, given the events by start. A value that moves between
// stages is drawn as an arrow from the action that made it, through its send and its receive, to
// the action that uses it:
//
//	[ 0F2 ]──►[ 0F2>1 ]──►[ 0>1F2 ]──►[ 1F2 ]
//	   s          t           t          f
//
// An arrow belongs to a receive. Where the timeline lacks one of the others the arrow joins the
// rest; where it lacks all three no arrow is drawn. In a timeline of several steps a receive belongs to
// the last send before it and to the first user after it.
//
// Every end carries the start of its event as its time, since a viewer takes the end of a slice for
// outside of it. The arrow is drawn from the slice's end all the same.
func flows(events []schedule.Event) [][]record {
	ends := make([][]record, len(events))
	last := make(map[schedule.Action]int)      // by action: its last event
	waiting := make(map[schedule.Action][]int) // by user: receives that have not been used
	via := make(map[int][]int)                 // by receive: the events of its arrow
	for at, e := range events {
		a := e.Action
		if a.Kind == schedule.BackwardInput { // of a backward's parts the first makes and uses gradients
			a.Kind = schedule.Backward
		}
		for _, receive := range waiting[a] {
			via[receive] = append(via[receive], at)
		}
		delete(waiting, a)
		last[a] = at
		if !a.Kind.Receive() {
			continue
		}
		kind := schedule.Forward
		if a.Kind == schedule.ReceiveGradient {
			kind = schedule.Backward
		}
		maker := schedule.Action{Kind: kind, Stage: a.Peer, MicroBatch: a.MicroBatch}
		user := schedule.Action{Kind: kind, Stage: a.Stage, MicroBatch: a.MicroBatch}
		for _, before := range []schedule.Action{maker, a.Matching()} {
			if from, ok := last[before]; ok {
				via[at] = append(via[at], from)
			}
		}
		via[at] = append(via[at], at)
		waiting[user] = append(waiting[user], at)
	}
	id := 0
	for receive := range events {
		arrow := via[receive]
		if len(arrow) < 2 {
			continue
		}
		id++
		for i, at := range arrow {
			e := events[at]
			end := record{Phase: "t", Pid: pid, Tid: tid(e.Worker), Ts: new(micros(e.Start)),
				Name: events[receive].Action.String(), Cat: "flow", ID: id}
			switch i {
			case 0:
				end.Phase = "s"
			case len(arrow) - 1:
				end.Phase, end.Bind = "f", "e" // bind to the enclosing slice, not to the next
			}
			ends[at] = append(ends[at], end)
		}
	}
	return ends
}
