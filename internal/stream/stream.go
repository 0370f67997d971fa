// Package stream keeps the order of work that devices do later than the host says.
//
// A GPU does what is queued on a stream in order, some time after it was queued. Two streams know
// nothing of each other but by events: an event is recorded on one, and another waits for it. The
// host goes on meanwhile. So an action of a pipeline is done when its event is, and not when the
// call that has queued it returns.
//
// Memory belongs to the stream that it was allocated for. The allocator gives a block that the host
// has freed to the next allocation for the same stream at once: whatever is queued there comes after
// all that was queued before. A stream that reads or writes memory of another one has to be waited
// for before the block is freed, and before it is used.
//
// The functions here are all the places where streams wait. Each wait has its Reason, by which tests
// leave it out.
package stream

// Reason says why a stream waits.
type Reason int

// The reasons.
const (
	Given    Reason = iota // what the caller of a run gives it is there before the run begins
	Produced               // a value is there before it is copied, or sent
	Vacant                 // all that used the memory of a copy or receive before has ended before it is written
	Arrived                // a copy or receive has ended before it is used
	Copied                 // a copy or send has ended before the memory of what it has read is used again
	Ended                  // all work of a run has ended before its caller goes on
	Reasons                // how many there are
)

func (r Reason) String() string {
	return [...]string{"given", "produced", "vacant", "arrived", "copied", "ended"}[r]
}

// Event is a point in the work of a stream. It is done when all work queued there before it is.
type Event interface {
	// Synchronize blocks until the event is done.
	Synchronize()
	// Free frees the event. Streams that wait for it go on to wait.
	Free()
}

// Stream is a queue of work, of a GPU or of the host. Methods may be called on any goroutine. They
// panic as operators do if the device has failed.
type Stream interface {
	// Record returns an event, which the caller frees.
	Record() Event
	// Wait makes work that is queued from now on begin when the event is done. It blocks on the host
	// alone.
	Wait(e Event, why Reason)
}

// Host is the stream of the CPU, whose work is done when the call returns. It costs nothing where
// there is no other stream.
type Host struct{}

// Record returns an event that is done.
func (Host) Record() Event { return done{} }

// Wait blocks until the event is done.
func (Host) Wait(e Event, _ Reason) { e.Synchronize() }

type done struct{}

func (done) Synchronize() {}
func (done) Free()        {}

// after makes what is queued on s from now on begin when what is queued on before so far has ended.
func after(s, before Stream, why Reason) {
	if s == before {
		return
	}
	e := before.Record()
	defer e.Free()
	s.Wait(e, why)
}

// Begin makes the work of a run on a worker's stream begin after what its caller has queued so far.
func Begin(worker, caller Stream) { after(worker, caller, Given) }

// End blocks the host until all work on a stream has ended. Copies that the stream has not
// waited for are not among it: see Route.
func End(host, s Stream) { after(host, s, Ended) }

// Beside queues work on a stream beside a worker's. It begins at ready, an event of the worker's, and
// has ended when Beside returns, also with an error. So what the worker's host queues when it knows
// of that comes after the work, and what it queues meanwhile waits for nothing of it.
//
//	worker  ── B ─ ready ─────────────── B ── ...
//	beside          └─ produced ─ work ─┐
//	host                                └─ ended
func Beside(host, beside Stream, ready Event, work func() error) error {
	beside.Wait(ready, Produced)
	defer End(host, beside)
	return work()
}

// Route is the streams of moves from one worker to another: that of the worker that sends, one for
// copies in this direction alone, and that of the worker that receives.
type Route struct{ From, Copies, To Stream }

// Move copies values, and frees them where they were. ready is an event of From at which they are
// there. allocate takes the memory for the copies, which belongs to To. copy queues the copies on
// Copies. free frees the values, whose memory belongs to From.
//
//	From    ── F ─ ready ─────────────────────────┬─ copied ─ free ──
//	Copies          └── produced ┬ vacant ─ copy ─┤
//	To      ── allocate ─────────┘                └─ arrived ── F ───
//
// The host waits for nothing, so that the bytes of both devices change when they do on CPUs. From
// waits before free: its work of later is held up if it comes that far before the copy has ended,
// but memory is never kept for how long a copy takes, as record_stream would.
//
// Vacant is recorded after allocate. Another host that frees memory of To in between has queued its
// wait (Copied) on To before that, so that the event comes after the wait.
//
// If allocate panics, nothing was queued and nothing is freed. If copy panics, the values are freed
// after what it has queued.
func (r Route) Move(ready Event, allocate, copy, free func()) {
	allocate()
	r.Copies.Wait(ready, Produced)
	after(r.Copies, r.To, Vacant)
	defer free()
	defer after(r.From, r.Copies, Copied)
	copy()
	after(r.To, r.Copies, Arrived)
}

// Way is the streams of moves in one direction between a device and one of another process: that of
// the work that makes or uses the values, Own, and one for moves this way alone. The other process has its end, and its queue. A
// move begins when both ends have come to it.
//
//	Own     ── F ─ ready ────────── B ──┬─ copied ─ free ──          ── room ─ F ────── arrived ── F ──
//	Copies          └─ produced ─ send ─┘                                └─ vacant ─ receive ─┘
type Way struct{ Own, Copies Stream }

// Send queues sends of values that are there at ready, an event of Own. At the event that it returns,
// also with an error, they have left.
func (w Way) Send(ready Event, send func() error) (left Event, err error) {
	w.Copies.Wait(ready, Produced)
	err = send()
	return w.Copies.Record(), err
}

// Free frees values, whose memory belongs to Own, when they have left. The host does not wait: the
// work of Own is held up if it comes that far before.
func (w Way) Free(left Event, free func()) {
	w.Own.Wait(left, Copied)
	left.Free()
	free()
}

// Finish frees values at the end of a run. The host waits until they have left: they may share memory
// with what the caller of the run has given it, and may change when that goes on.
func (w Way) Finish(host Stream, left Event, free func()) {
	host.Wait(left, Ended)
	left.Free()
	free()
}

// Room takes memory of Own for what will be received, and returns an event at which nothing uses it
// any more. Receives into it then wait for no later work of Own, and go on beside it.
func (w Way) Room(allocate func()) (vacant Event) {
	allocate()
	return w.Own.Record()
}

// Receive queues receives into a room. What is queued on Own afterwards begins when they have ended,
// also with an error.
func (w Way) Receive(vacant Event, receive func() error) error {
	w.Copies.Wait(vacant, Vacant)
	defer after(w.Own, w.Copies, Arrived)
	return receive()
}
