// Package stream orders the work of GPU streams by events.
//
// A GPU does the work of a stream in order, some time after the host has queued it. Only events order the
// work of different streams: one stream records an event, and another waits for it. The host does not wait.
// So an action of a pipeline ends with its event, and not when the call returns.
//
// Memory belongs to the stream that it was allocated for. The allocator reuses a freed block for the next
// allocation of that stream at once, since the work of a stream is in order. If another stream uses the
// block, the owner has to wait for that stream before the block is freed.
//
// Streams wait only in functions of this package. Each wait has a Reason, by which tests omit it.
package stream

// Reason says why a stream waits.
type Reason int

// The reasons.
const (
	Given    Reason = iota // before a run begins: the caller has made the batch
	Produced               // before a copy or send: the value is made
	Vacant                 // before a copy or receive: its memory is no longer used
	Arrived                // before a value is used: its copy or receive has ended
	Copied                 // before memory is reused: the copy or send from it has ended
	Ended                  // before the caller goes on: the run has ended
	Reasons                // the number of reasons
)

func (r Reason) String() string {
	return [...]string{"given", "produced", "vacant", "arrived", "copied", "ended"}[r]
}

// Event is a point in the work of a stream. It is done when all earlier work is done.
type Event interface {
	Synchronize() // blocks until the event is done
	Free()        // streams that wait for the event keep waiting
}

// Stream is a queue of work, of a GPU or of the host. Any goroutine may call the methods. They panic like
// operators if the device has failed.
type Stream interface {
	// Record returns an event after all work so far. The caller frees it.
	Record() Event
	// Wait orders later work of the stream after the event. Only Host blocks in it.
	Wait(e Event, why Reason)
}

// Host is the stream of the CPU. Its work is done when the call returns.
type Host struct{}

func (Host) Record() Event { return done{} }

func (Host) Wait(e Event, _ Reason) { e.Synchronize() }

type done struct{}

func (done) Synchronize() {}
func (done) Free()        {}

// waitFor orders later work of s after the work of other so far.
func waitFor(s, other Stream, why Reason) {
	if s == other {
		return
	}
	e := other.Record()
	defer e.Free()
	s.Wait(e, why)
}

// Begin orders the work of a run on a worker's stream after the work of the run's caller.
func Begin(worker, caller Stream) { waitFor(worker, caller, Given) }

// End blocks the host until all work of s has ended. Copies have another stream: see Route.
func End(host, s Stream) { waitFor(host, s, Ended) }

// RunBeside queues work on a stream other than the worker's, and blocks until the work has ended,
// also with an error. The work begins after ready, an event of the worker's stream. Later work of
// the worker does not wait.
//
//	worker  ── B ─ ready ─────────────── B ── ...
//	other           └─ produced ─ work ─┐
//	host                                └─ ended
func RunBeside(host, other Stream, ready Event, work func() error) error {
	other.Wait(ready, Produced)
	defer End(host, other)
	return work()
}

// Route has the streams of moves from one worker to another: the sender's, the receiver's, and one for copies
// in this direction.
type Route struct{ From, Copies, To Stream }

// Move copies values to another worker and frees the originals. ready is the event of From after which the
// values are complete. allocate allocates the copies, whose memory belongs to To. copy queues the copies on
// Copies. free frees the originals, whose memory belongs to From.
//
//	From    ── F ─ ready ─────────────────────────┬─ copied ─ free ──
//	Copies          └── produced ┬ vacant ─ copy ─┤
//	To      ── allocate ─────────┘                └─ arrived ── F ───
//
// The host does not wait, so the bytes of both devices change as on CPUs. From waits before free, which may
// delay its later work. In return the originals' memory is free at once, and not after the copy as with
// PyTorch's record_stream.
//
// Vacant is recorded after allocate. If another goroutine frees memory of To in between, To waits
// for the memory's last copy (Copied) before the event.
//
// If allocate panics, nothing was queued and nothing is freed. If copy panics, the originals are freed after
// the copies that were queued.
func (r Route) Move(ready Event, allocate, copy, free func()) {
	allocate()
	r.Copies.Wait(ready, Produced)
	waitFor(r.Copies, r.To, Vacant)
	defer free()
	defer waitFor(r.From, r.Copies, Copied)
	copy()
	waitFor(r.To, r.Copies, Arrived)
}

// Way has the streams of moves in one direction between a device and a device of another process. Own is the
// stream of the work that makes or uses the values. The other process has such streams, too. A move begins
// when both processes have reached it.
//
//	Own     ── F ─ ready ────────── B ──┬─ copied ─ free ──         ─ alloc ─ F ────── arrived ── F ──
//	Copies          └─ produced ─ send ─┘                                └─ vacant ─ receive ─┘
type Way struct{ Own, Copies Stream }

// Send queues sends of values. ready is the event of Own after which the values are complete. ended
// is the end of the sends, also with an error.
func (w Way) Send(ready Event, send func() error) (ended Event, err error) {
	w.Copies.Wait(ready, Produced)
	err = send()
	return w.Copies.Record(), err
}

// Free frees values after their sends. Own waits; the host does not.
func (w Way) Free(ended Event, free func()) { freeAfter(w.Own, ended, Copied, free) }

// Finish frees values at the end of a run, after their sends. The host waits, since the run's caller may then
// overwrite memory that the values share.
func (w Way) Finish(host Stream, ended Event, free func()) { freeAfter(host, ended, Ended, free) }

func freeAfter(s Stream, ended Event, why Reason, free func()) {
	s.Wait(ended, why)
	ended.Free()
	free()
}

// Allocate allocates memory of Own for receives. vacant is the end of the memory's earlier use.
// Receives wait for vacant, and not for later work of Own.
func (w Way) Allocate(allocate func()) (vacant Event) {
	allocate()
	return w.Own.Record()
}

// Receive queues receives into the memory of Allocate. Later work of Own waits for them, also after
// an error.
func (w Way) Receive(vacant Event, receive func() error) error {
	w.Copies.Wait(vacant, Vacant)
	defer waitFor(w.Own, w.Copies, Arrived)
	return receive()
}
