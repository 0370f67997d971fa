package pipe

import (
	"sync"

	"penstock/schedule"
	"penstock/torch"
)

// Stages share nothing. What one makes for another is sent over a link and received from it, once
// for each micro-batch and direction:
//
//	stage 0    F ── send 0F2>1 ──► link ──► receive 0>1F2 ── F    stage 1
//	           B ◄─ receive 1>0B2 ◄── link ◄── send 1B2>0 ── B
//
// A link knows parcels by their send. The program's order says when a parcel may be sent and
// received, and how many may wait; a link only carries them.

// parcel is all that moves from one stage to another for a micro-batch in one direction. Tensors
// are kept (torch.Ctx.Keep) and the parcel's until somebody takes them out. A tensor that stands in
// it twice is the same pointer twice.
type parcel struct {
	// values are a stage's output, or the gradients of its inputs: for a neighbour, none for other
	// stages.
	values []*torch.Tensor
	// skips are those that go from the one stage to the other, or the gradients of their pops, in
	// the order of the later stage's ports.
	skips [][]*torch.Tensor
	// ties are parameters that both stages use, or their gradients, in the order of the later
	// stage's ties. Values of parameters come with the first micro-batch.
	ties []*torch.Tensor
	// wants says of each of values, and of each skip, whether a gradient of it can come back.
	wants, wantsSkips []bool
}

func (p parcel) free() {
	torch.FreeAll(p.values)
	torch.FreeAll(p.ties)
	for _, list := range p.skips {
		torch.FreeAll(list)
	}
}

// memoryLink carries parcels between the stages of one process. What waits on it lies in memory of
// the stage that sent it. It is safe for concurrent use.
type memoryLink struct {
	mu      sync.Mutex
	waiting map[schedule.Action]parcel // by send
}

// send puts a parcel on the link and returns at once.
func (l *memoryLink) send(send schedule.Action, p parcel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting == nil {
		l.waiting = map[schedule.Action]parcel{}
	}
	l.waiting[send] = p
}

// receive takes a parcel, which was sent, from the link. It is in memory of the stage that sent it.
func (l *memoryLink) receive(send schedule.Action) parcel {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.waiting[send]
	delete(l.waiting, send)
	return p
}

// free frees what waits.
func (l *memoryLink) free() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.waiting {
		p.free()
	}
	clear(l.waiting)
}
