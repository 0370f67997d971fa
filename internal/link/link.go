// Package link carries what a stage of a pipeline makes for another: activations, skips, parameters
// that both use, and the gradients of all of these. Stages share nothing else.
//
//	stage 0    F ── send 0F2>1 ──► link ──► receive 0>1F2 ── F    stage 1
//	           B ◄─ receive 1>0B2 ◄── link ◄── send 1B2>0 ── B
//
// A [Memory] joins stages of one process. A link between processes is another [Link]. The program
// says when a parcel may be sent and received, and how many may wait.
package link

import (
	"errors"
	"fmt"
	"sync"

	"penstock.example/internal/stream"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// Parcel is all that moves from one stage to another for a micro-batch in one direction: lists of
// values, which the receiver takes in the order in which the sender has added them. The sender
// decides how many values a list has, of which types and shapes, so that a link between processes
// has to carry these too. It also has to carry strides: the order in which operators sum, and so
// the bits of the result, depends on them.
type Parcel struct {
	// Device is where the tensors are: that of the sender until the link has copied them. Device
	// counts as the sender's also where both stages are on it.
	Device torch.Device
	// Ready is an event after which the values are there. The parcel owns it. It may be nil in a
	// parcel whose values are there already.
	Ready stream.Event
	lists [][]Value
}

// Value is a tensor in a parcel. It has no graph and is kept (torch.Ctx.Keep). A tensor that is in
// a list twice is the same pointer twice. A nil tensor is a value that is absent. Between processes a
// tensor must be dense (torch.Dense), so that sending it takes no memory.
type Value struct {
	Tensor *torch.Tensor
	Wants  bool // a gradient of the tensor can come back
}

// Values are tensors of which no gradient comes back.
func Values(tensors ...*torch.Tensor) []Value {
	list := make([]Value, len(tensors))
	for i, t := range tensors {
		list[i].Tensor = t
	}
	return list
}

// Add appends a list. The parcel owns its tensors from then on.
func (p *Parcel) Add(list []Value) { p.lists = append(p.lists, list) }

// Lists are the lists that have not been taken. The parcel owns the tensors.
func (p *Parcel) Lists() [][]Value { return p.lists }

// Take returns the next list, whose tensors belong to the caller, or nil if there is none.
func (p *Parcel) Take() []Value {
	if len(p.lists) == 0 {
		return nil
	}
	list := p.lists[0]
	p.lists = p.lists[1:]
	return list
}

// Free frees the tensors that have not been taken.
func (p *Parcel) Free() {
	for _, list := range p.lists {
		for _, v := range list {
			v.Tensor.Free()
		}
	}
	p.lists = nil
	if p.Ready != nil {
		p.Ready.Free()
		p.Ready = nil
	}
}

// Link carries parcels from the stage of a send action to that of the matching receive. It is safe
// for concurrent use by the workers of a pipe. After a call that has failed come Abort and Free alone.
type Link interface {
	// Send hands a parcel to the link, which owns it from then on, also when it fails. c is that of
	// the sender's worker.
	Send(c *torch.Ctx, send schedule.Action, p Parcel) error
	// Expect says that the parcel of this send will be received, after those that were expected before
	// on the send's link, and that there is memory for it from now on, so that it can arrive before it
	// is wanted. c is that of the receiver's worker.
	Expect(c *torch.Ctx, send schedule.Action) error
	// Receive returns the parcel of a send, which belongs to the caller. It waits until the parcel
	// has arrived. c is that of the receiver's worker.
	Receive(c *torch.Ctx, send schedule.Action) (Parcel, error)
	// Meets reports whether Send waits until the other side is at Receive, as Gloo's does. A worker
	// then does not wait for the end of a send before it receives.
	Meets(send schedule.Action) bool
	// Settle returns when what was sent is known to have arrived, and nothing of it is in memory of
	// the sender any more. The program says that it was received by now. It is called by the
	// sender's worker, also for a send of an earlier run or of none.
	Settle(send schedule.Action) error
	// Abort ends all calls that wait, and all later ones, with ErrAborted.
	Abort()
	// Free frees the parcels that wait. No call may go on meanwhile.
	Free()
}

// ErrAborted is the error of a call that waited when the run failed elsewhere.
var ErrAborted = errors.New("link: the run has failed on another stage")

// Memory carries parcels between the stages of one process. A parcel that waits lies in memory of
// the stage that sent it, and is handed over as it is. Send returns at once. Receive does not wait:
// the parcel must have been sent. The zero Memory is ready.
type Memory struct {
	mu      sync.Mutex
	waiting map[schedule.Action]Parcel // by send
}

// Send puts a parcel on the link.
func (l *Memory) Send(_ *torch.Ctx, send schedule.Action, p Parcel) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting == nil {
		l.waiting = map[schedule.Action]Parcel{}
	}
	l.waiting[send] = p
	return nil
}

// Expect does nothing: a parcel waits where it was made.
func (l *Memory) Expect(*torch.Ctx, schedule.Action) error { return nil }

// Receive takes a parcel from the link.
func (l *Memory) Receive(_ *torch.Ctx, send schedule.Action) (Parcel, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, sent := l.waiting[send]
	if !sent {
		return Parcel{}, fmt.Errorf("link: %v was not sent; want the send done before the receive begins", send)
	}
	delete(l.waiting, send)
	return p, nil
}

// Meets is false.
func (l *Memory) Meets(schedule.Action) bool { return false }

// Settle does nothing: a receiver takes the parcel from the memory of the sender.
func (l *Memory) Settle(schedule.Action) error { return nil }

// Abort does nothing, as no call waits.
func (l *Memory) Abort() {}

// Free frees the parcels that wait.
func (l *Memory) Free() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.waiting {
		p.Free()
	}
	clear(l.waiting)
}
