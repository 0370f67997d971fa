package trace

import "penstock.example/schedule"

// flows returns the ends of arrows at each event, given the events by start. An arrow follows a value
// between stages: from the action that computes the value, through send and receive, to its user.
//
//	[ 0F2 ]──►[ 0F2>1 ]──►[ 0>1F2 ]──►[ 1F2 ]
//	   s          t           t          f
//
// Each receive has an arrow, which leaves out actions that the timeline lacks. A receive alone has
// none. In a timeline of several steps a receive belongs to the last send before it and to the first
// user after it.
//
// An arrow's end has the start time of its event. Viewers count a slice's start as inside of the
// slice, and its end as outside. They still draw the arrow from the slice's end.
func flows(events []schedule.Event) [][]record {
	ends := make([][]record, len(events))
	last := make(map[schedule.Action]int)      // by action: its last event
	waiting := make(map[schedule.Action][]int) // by user: receives before their user
	arrows := make([][]int, len(events))       // by receive: the events of its arrow
	for at, e := range events {
		a := e.Action
		if a.Kind == schedule.BackwardInput { // the first part uses and computes gradients of inputs
			a.Kind = schedule.Backward
		}
		for _, receive := range waiting[a] {
			arrows[receive] = append(arrows[receive], at)
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
				arrows[at] = append(arrows[at], from)
			}
		}
		arrows[at] = append(arrows[at], at)
		waiting[user] = append(waiting[user], at)
	}
	id := 0
	for receive, arrow := range arrows {
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
				end.Phase, end.Bind = "f", "e" // the enclosing slice, not the next
			}
			ends[at] = append(ends[at], end)
		}
	}
	return ends
}
