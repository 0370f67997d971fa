package trace

import "penstock/schedule"

// flows returns the ends of arrows at each event, given the events by start. What a transfer moves is drawn as an
// arrow from the action that made it, through the transfer, to the action that uses it:
//
//	[ 0F2 ]──►[ 0>1F2 ]──►[ 1F2 ]
//	   s          t          f
//
// Where the timeline lacks one of the three the arrow joins the other two; where it lacks two there is none. In a
// timeline of several steps a transfer belongs to the last maker before it and to the first user after it.
//
// Every end carries the start of its event as its time, since a viewer takes the end of a slice for outside of it.
// The arrow is drawn from the slice's end all the same.
func flows(events []schedule.Event) [][]record {
	ends := make([][]record, len(events))
	made := make(map[schedule.Action]int)      // by what makes: its last event
	waiting := make(map[schedule.Action][]int) // by what uses: transfers that have not been used
	via := make(map[int][]int)                 // by transfer: the events of its arrow
	var order []int                            // transfers
	for at, e := range events {
		a := e.Action
		for _, transfer := range waiting[a] {
			via[transfer] = append(via[transfer], at)
		}
		delete(waiting, a)
		made[a] = at
		if !a.Kind.Transfer() {
			continue
		}
		maker, user := joined(a)
		if from, ok := made[maker]; ok {
			via[at] = append(via[at], from)
		}
		via[at] = append(via[at], at)
		waiting[user] = append(waiting[user], at)
		order = append(order, at)
	}
	id := 0
	for _, transfer := range order {
		arrow := via[transfer]
		if len(arrow) < 2 {
			continue
		}
		id++
		for i, at := range arrow {
			end := flowEnd(events[at], id, events[transfer].Action.String())
			switch i {
			case 0:
				end.Phase = phaseFlowFrom
			case len(arrow) - 1:
				end.Phase, end.Bind = phaseFlowTo, "e" // bind to the enclosing slice, not to the next
			default:
				end.Phase = phaseFlowVia
			}
			ends[at] = append(ends[at], end)
		}
	}
	return ends
}

// joined returns the actions that make and use what a transfer moves.
func joined(transfer schedule.Action) (maker, user schedule.Action) {
	kind := schedule.Forward
	if transfer.Kind == schedule.Gradient {
		kind = schedule.Backward
	}
	maker = schedule.Action{Kind: kind, Stage: transfer.Source, MicroBatch: transfer.MicroBatch}
	user = schedule.Action{Kind: kind, Stage: transfer.Stage, MicroBatch: transfer.MicroBatch}
	return maker, user
}

// flowEnd is an arrow's end at an event, but for its phase. The ends of an arrow share name, category and id.
func flowEnd(e schedule.Event, id int, name string) record {
	at := micros(e.Start)
	return record{Pid: pid, Tid: tid(e.Worker), Ts: &at, Name: name, Cat: "flow", ID: id}
}
