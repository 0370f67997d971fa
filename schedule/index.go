package schedule

// index finds an action's id. A graph looks up each of its actions several times, and may have
// hundreds of thousands: what every program has is in a table, and only the rest in a map. With a
// map alone the graph of 64 stages and 1000 micro-batches takes some five times as long
// (BenchmarkGraph).
type index struct {
	stages, microBatches int
	table                []int32 // by slot: id + 1, or 0
	rest                 map[Action]int
}

// kinds is the number of kinds. A micro-batch on a stage has a slot for one action of each.
const kinds = int(ReceiveGradient)

func newIndex(p *Program) *index {
	x := &index{rest: make(map[Action]int)}
	if checkSize(p.Stages, 0, p.MicroBatches) == nil {
		x.stages, x.microBatches = p.Stages, p.MicroBatches
		x.table = make([]int32, x.stages*x.microBatches*kinds)
	}
	return x
}

// slot is the action's place in the table, or false if it is a skip or does not belong to the
// program.
func (x *index) slot(a Action) (int, bool) {
	var peer int
	switch a.Kind {
	case Forward, Recompute, Backward, BackwardInput, BackwardWeight:
		peer = 0
	case SendActivation, ReceiveGradient:
		peer = a.Stage + 1
	case SendGradient, ReceiveActivation:
		peer = a.Stage - 1
	default:
		return 0, false
	}
	if a.Peer != peer || a.Stage < 0 || a.Stage >= x.stages || a.MicroBatch < 0 ||
		a.MicroBatch >= x.microBatches {
		return 0, false
	}
	return (a.Stage*x.microBatches+a.MicroBatch)*kinds + int(a.Kind-Forward), true
}

// add gives an action its id, unless it has one.
func (x *index) add(a Action, id int) {
	if _, twice := x.find(a); twice {
		return
	}
	if slot, ok := x.slot(a); ok {
		x.table[slot] = int32(id + 1)
	} else {
		x.rest[a] = id
	}
}

// find returns the action's id, or false if it has none.
func (x *index) find(a Action) (int, bool) {
	if slot, ok := x.slot(a); ok {
		id := int(x.table[slot]) - 1
		return max(id, 0), id >= 0
	}
	id, ok := x.rest[a]
	return id, ok
}
