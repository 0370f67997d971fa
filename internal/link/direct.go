package link

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"penstock.example/internal/engine"
	"penstock.example/internal/stream"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// Communicators carry the memory of tensors between devices of different processes, past the hosts: see
// [NCCL]. Each communicator has one direction. It matches the moves that both ends queue by their order
// alone.
type Communicators interface {
	// ID makes an id with which both ends open a communicator.
	ID() ([]byte, error)
	// Open joins the other end, for a device that sends or receives, and returns the number of the
	// communicator. It blocks until the other end has called it, or Abort is called.
	Open(id []byte, d torch.Device, sends bool) (int, error)
	// Transfer queues all moves at once, so that no move waits until another one is queued.
	Transfer(moves []Move) error
	// Err returns a failure since Open, or nil. It returns even while Close waits.
	Err() error
	// Abort ends all calls that wait and all queued moves, and closes all communicators.
	Abort()
	// Close closes all communicators when the queued moves are done.
	Close()
}

// Direct has the GPU links of this process to others. A GPU link carries tensors without copies on the hosts.
// The heads of parcels go over the Transport of a [Remote].
//
//	sender     head: number, bytes, layout ─────► the Remote's Transport ──► receiver
//	           tensors ── stream of the link ───► communicator ────────────► stream of the link
//
// A GPU link leads from one device to another. It has a communicator, and a stream of its own at either
// end. So the two directions between two devices do not wait for each other.
//
// The sender sends the head after its host has queued the tensors. The receiver's host waits for the head
// before it queues its receives. So a queued receive ends whatever the hosts do next. A GPU link has no tags:
// parcels are received in the order of their sends. The number in the head reveals a mistake.
type Direct struct {
	comms   Communicators
	links   map[schedule.Edge]*gpuLink // with an end in this process
	closed  chan struct{}
	watcher sync.WaitGroup
}

// gpuLink is one end of a GPU link. One goroutine at a time uses it.
type gpuLink struct {
	edge   schedule.Edge
	sends  bool
	device torch.Device
	copies stream.Stream
	comm   int    // the communicator, from Open
	number uint64 // of the next parcel
}

// streams returns the streams of a move for the context of a worker.
func (g *gpuLink) streams(c *torch.Ctx) stream.Way {
	return stream.Way{Own: engine.StreamOf(c), Copies: g.copies}
}

// End is a device of this process that has GPU links.
type End struct {
	Device torch.Device
	Copies func() stream.Stream // opens a stream for a link; it may panic like an operator
}

// VerdictTime is how long a group may take to learn which process is gone. The error of a broken connection,
// which may be a consequence, counts only after that.
const VerdictTime = 500 * time.Millisecond

// watch aborts all moves when the group has failed, and calls fail when a communicator has failed.
func (d *Direct) watch(failed <-chan struct{}, fail func(error)) {
	poll := time.NewTicker(100 * time.Millisecond)
	defer poll.Stop()
	for {
		select {
		case <-failed:
			d.comms.Abort() // also the moves that Close waits for
			return
		case <-d.closed:
			return
		case <-poll.C:
		}
		if err := d.comms.Err(); err != nil {
			poll.Stop()
			defer time.AfterFunc(VerdictTime, func() {
				fail(fmt.Errorf("link: between GPUs of different processes: %w", err))
			}).Stop()
		}
	}
}

// NamedID is the id of a GPU link's communicator.
type NamedID struct {
	Edge schedule.Edge
	ID   []byte
}

// Connect makes the GPU links of the given edges between numbered ends. All processes give the same edges.
// here has the ends of this process. meet gathers the ids of all processes. When failed is closed, all calls
// and moves are aborted. When a communicator has failed, fail is called. The caller closes the links, also
// after an error.
//
// Links open in rounds in which a device opens at most one. A test number moves over each link, as the first
// move of a communicator may take long.
func Connect(comms Communicators, edges []schedule.Edge, here map[int]End, failed <-chan struct{},
	fail func(error),
	meet func(own []NamedID, failed error) ([][]NamedID, error)) (*Direct, error) {
	d := &Direct{comms: comms, links: map[schedule.Edge]*gpuLink{}, closed: make(chan struct{})}
	own, err := d.makeEnds(edges, here)
	d.watcher.Go(func() { d.watch(failed, fail) })
	all, err := meet(own, err)
	if err != nil {
		return d, err
	}
	ids := map[schedule.Edge][]byte{}
	for _, n := range slices.Concat(all...) {
		ids[n.Edge] = n.ID
	}
	for _, round := range rounds(edges) {
		if err := d.open(round, ids); err != nil {
			return d, err
		}
	}
	return d, nil
}

// makeEnds makes the ends of links in this process, and ids for the ends that send.
func (d *Direct) makeEnds(edges []schedule.Edge, here map[int]End) (ids []NamedID, err error) {
	for _, e := range edges {
		end, sends := here[e.From]
		to, receives := here[e.To]
		if sends == receives {
			continue
		}
		if receives {
			end = to
		}
		g := &gpuLink{edge: e, sends: sends, device: end.Device}
		if err := torch.Try(func() { g.copies = end.Copies() }); err != nil {
			return nil, err
		}
		d.links[e] = g
		if sends {
			id, err := d.comms.ID()
			if err != nil {
				return nil, err
			}
			ids = append(ids, NamedID{e, id})
		}
	}
	return ids, nil
}

// open opens the links of a round and tests them.
func (d *Direct) open(round []schedule.Edge, ids map[schedule.Edge][]byte) error {
	var links []*gpuLink
	var all sync.WaitGroup
	errs := make([]error, len(round))
	for i, e := range round {
		if g := d.links[e]; g != nil {
			links = append(links, g)
			all.Go(func() {
				if g.comm, errs[i] = d.comms.Open(ids[e], g.device, g.sends); errs[i] != nil {
					errs[i] = fmt.Errorf("link: from device %d to device %d: %w", e.From, e.To, errs[i])
				}
			})
		}
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return d.testMoves(links)
}

// testMoves moves a number over each link, all at once, and checks that it arrives.
func (d *Direct) testMoves(links []*gpuLink) error {
	var moves []Move
	var contexts []*torch.Ctx
	defer func() {
		for _, c := range contexts {
			c.Close()
		}
	}()
	number := func(g *gpuLink) int64 { return 1<<40 | int64(g.edge.From)<<20 | int64(g.edge.To) }
	err := torch.Try(func() {
		for _, g := range links {
			c := torch.NewCtx(torch.Options{Device: g.device})
			contexts = append(contexts, c)
			c.SetStream(g.copies)
			value := int64(0)
			if g.sends {
				value = number(g)
			}
			c.Unlimited(func() {
				moves = append(moves, Move{Over: g.comm, On: g.copies, Tensor: torch.From(c, []int64{value})})
			})
		}
	})
	if err == nil {
		err = d.comms.Transfer(moves)
	}
	if err := d.waitOrAbort(links, err); err != nil {
		return err
	}
	for i, g := range links {
		if got := torch.Values[int64](moves[i].Tensor)[0]; got != number(g) {
			return fmt.Errorf("link: from device %d to device %d came %#x; want %#x",
				g.edge.From, g.edge.To, got, number(g))
		}
	}
	return nil
}

// waitOrAbort waits until all queued moves have ended, also after a failure: moves may still use their
// tensors. err is the failure of queueing them, or nil. A failure aborts the other moves, as their other
// ends may never be queued. It returns the first error.
func (d *Direct) waitOrAbort(links []*gpuLink, err error) error {
	for _, g := range links {
		if err != nil {
			d.comms.Abort()
		}
		ended := torch.Try(func() {
			e := g.copies.Record()
			defer e.Free()
			e.Synchronize()
		})
		err = cmp.Or(err, ended, d.comms.Err())
	}
	return err
}

// Close closes the communicators and the streams of the links. All processes call it after their last run.
func (d *Direct) Close() {
	d.comms.Close()
	close(d.closed)
	d.watcher.Wait()
	for _, g := range d.links {
		engine.CloseStream(g.copies)
	}
}

// transfer queues the moves of a parcel's tensors.
func (d *Direct) transfer(g *gpuLink, tensors []*torch.Tensor) error {
	if len(tensors) == 0 {
		return nil
	}
	moves := make([]Move, len(tensors))
	for i, t := range tensors {
		moves[i] = Move{Over: g.comm, On: g.copies, Tensor: t}
	}
	return d.comms.Transfer(moves)
}
