// Package link carries the values that stages of a pipeline send each other: activations, skips, shared
// parameters, and their gradients. Stages share nothing else.
//
//	stage 0    F ── send 0F2>1 ──► link ──► receive 0>1F2 ── F    stage 1
//	           B ◄─ receive 1>0B2 ◄── link ◄── send 1B2>0 ── B
//
// A [Memory] joins stages of one process, a [Remote] stages of different processes. The schedule's program
// says when a parcel may be sent and received, and how many parcels may wait.
package link

import (
	"fmt"
	"sync"

	"penstock.example/internal/stream"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// Parcel is everything that moves from one stage to another for a micro-batch in one direction: lists of
// values. The receiver takes the lists in the order in which the sender has added them. The sender decides
// the length of a list and the type, shape and strides of each value. A link between processes carries
// these, too: operators sum in an order that depends on strides, and so do the bits of the result.
type Parcel struct {
	Device torch.Device // of the tensors: the sender's from a Memory, the receiver's from a Remote
	// Ready is an event after which the values are complete; nil if they are. The parcel owns it.
	Ready stream.Event
	Lists [][]Value // lists that were not taken; the parcel owns their tensors
}

// Value is a tensor in a parcel. It has no graph and is kept (torch.Ctx.Keep). Two values of a list with the
// same tensor have the same pointer. A nil tensor is an absent value. Between processes a tensor must be
// dense (engine.Dense), so that sending it takes no memory.
type Value struct {
	Tensor *torch.Tensor
	Wants  bool // a gradient of the tensor can come back
}

// Values makes values that get no gradient.
func Values(tensors ...*torch.Tensor) []Value {
	list := make([]Value, len(tensors))
	for i, t := range tensors {
		list[i].Tensor = t
	}
	return list
}

// Add appends a list. The parcel owns the list's tensors from then on.
func (p *Parcel) Add(list []Value) { p.Lists = append(p.Lists, list) }

// Take returns the next list, or nil after the last. The caller owns its tensors.
func (p *Parcel) Take() []Value {
	if len(p.Lists) == 0 {
		return nil
	}
	list := p.Lists[0]
	p.Lists = p.Lists[1:]
	return list
}

// Free frees the tensors that have not been taken.
func (p *Parcel) Free() {
	for _, list := range p.Lists {
		for _, v := range list {
			v.Tensor.Free()
		}
	}
	p.Lists = nil
	if p.Ready != nil {
		p.Ready.Free()
		p.Ready = nil
	}
}

// Link carries parcels from the stage of a send action to the stage of the matching receive. It is
// safe for concurrent use by the workers of a pipe; c is the context of the worker that calls.
// After a failed call only Free may follow. A failure of the group ends all calls that wait.
type Link interface {
	// Send hands a parcel to the link. The link owns it from then on, also after a failure.
	Send(c *torch.Ctx, send schedule.Action, p Parcel) error
	// Expect announces a later Receive of this send. Receives of one link are in the order of
	// Expect. From now on the parcel may use memory of the receiver, and arrive before Receive.
	Expect(c *torch.Ctx, send schedule.Action) error
	// Receive waits for the parcel of a send and returns it. The caller owns it.
	Receive(c *torch.Ctx, send schedule.Action) (Parcel, error)
	// Meets reports whether a send ends only after its receive has begun, as with Gloo. A worker then does
	// not wait for the end of a send before it receives.
	Meets(send schedule.Action) bool
	// Settle waits until a sent parcel has arrived, and frees the sender's copy. The receive
	// comes earlier in the program. The sender's worker calls Settle, also for a send of an
	// earlier run.
	Settle(send schedule.Action) error
	// Free frees the parcels that wait. No other call may be under way.
	Free()
}

// Memory carries parcels between the stages of one process. A parcel waits in memory of the sender and is
// handed over uncopied. Neither Send nor Receive waits: a parcel must be sent before Receive. The zero Memory
// is ready.
type Memory struct {
	mu      sync.Mutex
	waiting map[schedule.Action]Parcel // by send action
}

func (l *Memory) Send(_ *torch.Ctx, send schedule.Action, p Parcel) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting == nil {
		l.waiting = map[schedule.Action]Parcel{}
	}
	l.waiting[send] = p
	return nil
}

func (l *Memory) Expect(*torch.Ctx, schedule.Action) error { return nil }

func (l *Memory) Receive(_ *torch.Ctx, send schedule.Action) (Parcel, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, sent := l.waiting[send]
	if !sent {
		return Parcel{}, fmt.Errorf("link: %v was not sent", send)
	}
	delete(l.waiting, send)
	return p, nil
}

func (l *Memory) Meets(schedule.Action) bool { return false }

func (l *Memory) Settle(schedule.Action) error { return nil }

func (l *Memory) Free() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.waiting {
		p.Free()
	}
	clear(l.waiting)
}
