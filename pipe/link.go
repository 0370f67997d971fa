package pipe

import (
	"sync"

	"penstock/schedule"
	"penstock/torch"
)

// Stages share nothing. What a stage makes for another is sent over a link and received from it,
// once for each micro-batch and direction:
//
//	stage 0    F ── send 0F2>1 ──► link ──► receive 0>1F2 ── F    stage 1
//	           B ◄─ receive 1>0B2 ◄── link ◄── send 1B2>0 ── B
//
// A link finds a parcel by the action that sent it. The program says when a parcel may be sent and
// received, and how many may wait. The link only carries them.

// parcel is all that moves from one stage to another for a micro-batch in one direction. Tensors
// are kept (torch.Ctx.Keep) and belong to the parcel until they are taken out. A tensor that is in
// it twice is the same pointer twice.
type parcel struct {
	// values are the output of a stage, or the gradients of its inputs. Only a parcel between
	// neighbours has them.
	values []*torch.Tensor
	// skips are the values that pass between the two stages, or the gradients of their pops, in the
	// order of the later stage's skips.
	skips [][]*torch.Tensor
	// ties are the parameters that both stages use, or their gradients, in the order of the later
	// stage's ties. Only the first micro-batch has the parameters.
	ties []*torch.Tensor
	// wants and wantsSkips say for each of values and skips whether a gradient of it can come back.
	wants, wantsSkips []bool
}

func (p parcel) free() {
	torch.FreeAll(p.values)
	torch.FreeAll(p.ties)
	for _, list := range p.skips {
		torch.FreeAll(list)
	}
}

// memoryLink carries parcels between the stages of one process. A parcel that waits lies in memory
// of the stage that sent it. A memoryLink is safe for concurrent use.
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

// receive takes a parcel from the link. The parcel must have been sent. It lies in memory of the
// stage that sent it.
func (l *memoryLink) receive(send schedule.Action) parcel {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.waiting[send]
	delete(l.waiting, send)
	return p
}

// free frees the parcels that wait.
func (l *memoryLink) free() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.waiting {
		p.free()
	}
	clear(l.waiting)
}
