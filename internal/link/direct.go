package link

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"penstock.example/internal/stream"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// Communicators carry the memory of tensors between devices of different processes, beside their
// hosts: torch.NCCL. Each has one direction, moves in the order in which both ends queue them, and
// neither names nor compares them.
type Communicators interface {
	// ID makes what both ends of a communicator know it by.
	ID() ([]byte, error)
	// Open joins the other end, for a device that sends or receives, and returns the number of the
	// communicator. It blocks until the other end has called it, or Abort is called.
	Open(id []byte, d torch.Device, sends bool) (int, error)
	// Transfer queues moves on streams, all at once, so that none has to wait for another one to be
	// queued.
	Transfer(moves []torch.Move) error
	// Err is what has failed since, or nil. It does not wait for Close, which only Abort may end.
	Err() error
	// Abort ends whatever waits, moves that were queued too, and closes all.
	Abort()
	// Close closes all, when what was queued is done.
	Close()
}

// Direct is the ways of parcels between devices of different processes that do not lead through the
// memory of their hosts. The others are a [Remote]'s, which carries what is said about parcels too.
//
//	sender     header: number, layout, bytes ──► the Remote's Transport ──► receiver
//	           tensors ── stream of the way ───► communicator ────────────► stream of the way
//
// A way leads from one device to another, and has a communicator and at either end a stream of its
// own. So both directions of two devices move at once, whatever waits. The tensors of a parcel are
// queued together.
//
// The header comes when the sender's host has queued the tensors, and the receiver's host waits for
// it before it queues as many bytes. So a receive that was queued ends whatever hosts do next, and what
// does not fit is an error, where the communicator would wait for ever, or take other tensors for these.
// Values have no names on a way: they are received in the order in which they are sent
// (schedule.Limits), which the number in the header shows.
type Direct struct {
	comms   Communicators
	ways    map[schedule.Edge]*way // those with an end here
	all     []schedule.Edge        // of all processes
	closing chan struct{}
	closed  chan struct{}
	watcher sync.WaitGroup
}

// way is one end of a way. One goroutine at a time uses it.
type way struct {
	edge   schedule.Edge
	sends  bool
	device torch.Device
	copies stream.Stream
	over   int    // of the communicators
	number uint64 // of the next parcel
}

// streams are those of the way for a context that sends or receives.
func (w *way) streams(c *torch.Ctx) stream.Way { return stream.Way{Own: c.Stream(), Copies: w.copies} }

// End is a device of this process to or from which ways lead.
type End struct {
	Device torch.Device
	Copies func() stream.Stream // opens one for a way, on which nothing else works; it may panic as operators do
}

// NewDirect makes the ways of the given edges, which lead from end to end and are the same in all
// processes. here has the ends of this process by their numbers. IDs and Open make it ready.
// When failed is closed, all that waits is aborted. fail is told of a communicator that has failed.
func NewDirect(comms Communicators, edges []schedule.Edge, here map[int]End, failed <-chan struct{}, fail func(error)) (*Direct, error) {
	d := &Direct{comms: comms, ways: map[schedule.Edge]*way{}, all: edges, closing: make(chan struct{}), closed: make(chan struct{})}
	for _, e := range edges {
		from, sends := here[e.From]
		to, receives := here[e.To]
		if sends == receives {
			continue
		}
		end := to
		if sends {
			end = from
		}
		w := &way{edge: e, sends: sends, device: end.Device}
		if err := torch.Try(func() { w.copies = end.Copies() }); err != nil {
			return nil, err
		}
		d.ways[e] = w
	}
	d.watcher.Go(func() { d.watch(failed, fail) })
	return d, nil
}

// asks is how often communicators are asked whether they have failed. verdict is how long it may take
// until the group knows which process is gone, which counts before what a communicator says.
const (
	asks    = 100 * time.Millisecond
	verdict = 500 * time.Millisecond
)

// watch aborts when the group has failed, and has it fail when a communicator has.
func (d *Direct) watch(failed <-chan struct{}, fail func(error)) {
	ask := time.NewTicker(asks)
	defer ask.Stop()
	closing := d.closing
	var broken error
	for {
		select {
		case <-failed:
			d.comms.Abort()
			return
		case <-d.closed:
			return
		case <-closing: // what Close waits for can still be aborted
			ask.Stop()
			closing = nil
		case <-ask.C:
			switch err := d.comms.Err(); {
			case err == nil:
			case broken == nil:
				broken = err
				ask.Reset(verdict)
			default:
				ask.Stop()
				fail(fmt.Errorf("link: between GPUs of different processes: %w", broken))
			}
		}
	}
}

// IDs makes an id for each way on which this process sends. All processes are given those of all.
func (d *Direct) IDs() (map[schedule.Edge][]byte, error) {
	ids := map[schedule.Edge][]byte{}
	for e, w := range d.ways {
		if !w.sends {
			continue
		}
		id, err := d.comms.ID()
		if err != nil {
			return nil, err
		}
		ids[e] = id
	}
	return ids, nil
}

// Open opens all ways, in rounds in which no device is in two, and moves a number over each, so that
// whatever a communicator does at its first move is done. Then it moves one over all of them at once.
func (d *Direct) Open(ids map[schedule.Edge][]byte) error {
	for _, round := range rounds(d.all) {
		var ways []*way
		var all sync.WaitGroup
		errs := make([]error, len(round))
		for i, e := range round {
			w := d.ways[e]
			if w == nil {
				continue
			}
			ways = append(ways, w)
			all.Go(func() {
				if w.over, errs[i] = d.comms.Open(ids[e], w.device, w.sends); errs[i] != nil {
					errs[i] = fmt.Errorf("link: from device %d to device %d: %w", e.From, e.To, errs[i])
				}
			})
		}
		all.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
		if err := d.exercise(ways, 1); err != nil {
			return err
		}
	}
	return d.exercise(slices.Collect(maps.Values(d.ways)), 2)
}

// exercise moves a number over ways, queued all at once, and sees that it arrives.
func (d *Direct) exercise(ways []*way, round int64) error {
	var moves []torch.Move
	var contexts []*torch.Ctx
	defer func() {
		for _, c := range contexts {
			c.Close()
		}
	}()
	number := func(w *way) int64 { return round<<40 | int64(w.edge.From)<<20 | int64(w.edge.To) }
	err := torch.Try(func() {
		for _, w := range ways {
			c := torch.NewCtx(torch.Options{Device: w.device})
			contexts = append(contexts, c)
			c.SetStream(w.copies)
			value := int64(0)
			if w.sends {
				value = number(w)
			}
			c.Unlimited(func() {
				moves = append(moves, torch.Move{Over: w.over, On: w.copies, Tensor: torch.From(c, []int64{value})})
			})
		}
	})
	if err == nil {
		err = d.comms.Transfer(moves)
	}
	if err := d.settle(ways, err); err != nil {
		return err
	}
	for i, w := range ways {
		if got := torch.Values[int64](moves[i].Tensor)[0]; got != number(w) {
			return fmt.Errorf("link: from device %d to device %d came %#x in place of %#x", w.edge.From, w.edge.To, got, number(w))
		}
	}
	return nil
}

// settle waits until all that was queued on ways has ended, also when something has failed, such as its queueing with
// err: moves may still use their tensors. What has failed aborts the rest, whose other ends may never come. It returns
// the first error.
func (d *Direct) settle(ways []*way, err error) error {
	for _, w := range ways {
		if err != nil {
			d.comms.Abort()
		}
		ended := torch.Try(func() {
			e := w.copies.Record()
			defer e.Free()
			e.Synchronize()
		})
		err = cmp.Or(err, ended, d.comms.Err()) // such as that all were aborted
	}
	return err
}

// Close closes the communicators and the streams of the ways. All processes do so, after their last run.
func (d *Direct) Close() {
	close(d.closing)
	d.comms.Close()
	close(d.closed)
	d.watcher.Wait()
	for _, w := range d.ways {
		torch.CloseStream(w.copies)
	}
}

// transfer queues the moves of a parcel's tensors.
func (d *Direct) transfer(w *way, tensors []*torch.Tensor) error {
	if len(tensors) == 0 {
		return nil
	}
	moves := make([]torch.Move, len(tensors))
	for i, t := range tensors {
		moves[i] = torch.Move{Over: w.over, On: w.copies, Tensor: t}
	}
	return d.comms.Transfer(moves)
}

// directHead is what is said about a parcel before it is received.
type directHead struct {
	number uint64 // of the parcels of the way
	bytes  uint64 // of its tensors
	layout uint64 // bytes of the layout that follows, or 0 if it is that of the send's parcel before
}

const directHeadBytes = 24

func (h directHead) encode() []byte {
	out := binary.LittleEndian.AppendUint64(nil, h.number)
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(out, h.bytes), h.layout)
}

func parseDirectHead(b []byte) directHead {
	at := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
	return directHead{at(0), at(1), at(2)}
}

// bytes is what all tensors of a layout take on their way.
func (l layout) bytes() (n uint64) {
	for _, s := range l.tensors() {
		n += uint64(s.bytes())
	}
	return n
}

// sendDirect queues the tensors of a parcel and begins to send its header.
func (l *remoteRun) sendDirect(c *torch.Ctx, send schedule.Action, s *sending, w *way, shape layout, tensors []*torch.Tensor) (err error) {
	s.way = w.streams(c)
	if s.parcel.Ready == nil {
		s.parcel.Ready = c.Stream().Record()
	}
	if s.left, err = s.way.Send(s.parcel.Ready, func() error { return l.direct.transfer(w, tensors) }); err != nil {
		return fmt.Errorf("link: %v: %w", send, err)
	}
	text := shape.encode()
	head := directHead{number: w.number, bytes: shape.bytes(), layout: uint64(len(text))}
	w.number++
	if l.recall(send, text) {
		head.layout = 0
	}
	err = l.post(send, s, s.content(head.encode()), headTag)
	if err == nil && head.layout > 0 {
		err = l.post(send, s, s.content(text), layoutTag)
	}
	return err
}

// makeRoom takes the memory of the layout's tensors.
func (a *arriving) makeRoom(c *torch.Ctx) {
	a.vacant = a.way.streams(c).Room(func() {
		for _, s := range a.layout.tensors() {
			a.tensors = append(a.tensors, c.Keep(s.empty(c)))
		}
	})
}

// receiveDirect waits for the header of a parcel, and queues that its tensors are received.
func (l *remoteRun) receiveDirect(c *torch.Ctx, send schedule.Action, a *arriving) (p Parcel, err error) {
	content, err := a.head.bytes()
	if err != nil {
		return p, err
	}
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("link: %v, from stage %d to stage %d, micro-batch %d: %s; want processes with the same program and the same Penstock",
			send, send.Stage, send.Peer, send.MicroBatch, fmt.Sprintf(format, args...))
	}
	head, w := parseDirectHead(content), a.way
	if head.number != w.number {
		return p, refuse("it is parcel %d of its sender's GPU, and %d is the next that is received here", head.number, w.number)
	}
	if head.layout > maxLayout {
		return p, refuse("its description has %d bytes, more than %d", head.layout, maxLayout)
	}
	if head.layout > 0 {
		text, err := l.text(send, int(head.layout))
		if err != nil {
			return p, err
		}
		if !l.recall(send, text) || !a.known {
			a.drop()
			if a.layout, err = parseLayout(text); err != nil {
				return p, err
			}
			a.known = true
			a.makeRoom(c)
		}
	}
	switch have := a.layout.bytes(); {
	case !a.known:
		return p, refuse("the sender takes its layout for known, and it is not")
	case head.bytes != have:
		return p, refuse("the sender sends %d bytes, and the receiver has room for %d", head.bytes, have)
	}
	w.number++
	if err := w.streams(c).Receive(a.vacant, func() error { return l.direct.transfer(w, a.tensors) }); err != nil {
		return p, fmt.Errorf("link: %v: %w", send, err)
	}
	return a.parcel(c), nil
}
