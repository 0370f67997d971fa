package link

import (
	"cmp"
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
// [NCCL]. Each communicator has one direction. It matches the moves of both ends by order alone.
type Communicators interface {
	// ID makes an id with which both ends open a communicator.
	ID() ([]byte, error)
	// Open joins the other end, for a device that sends or receives, and returns the number of the
	// communicator. It blocks until the other end has called it, or Abort is called.
	Open(id []byte, d torch.Device, sends bool) (int, error)
	// Transfer queues the moves of dense tensors over a communicator, all at once, on a stream of its device.
	// It sends or receives as the communicator does.
	Transfer(number int, on stream.Stream, tensors []*torch.Tensor) error
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
	for _, e := range openingOrder(edges) {
		if g := d.links[e]; g != nil {
			if err := d.open(g, ids[e]); err != nil {
				return d, fmt.Errorf("link: from device %d to device %d: %w", e.From, e.To, err)
			}
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

// openingOrder sorts edges, without doubles, for processes that open their links one after the
// other. Links of disjoint pairs of processes open at the same time, so a row of processes needs
// four turns. All processes have the same order, so they cannot deadlock.
func openingOrder(edges []schedule.Edge) []schedule.Edge {
	return slices.Compact(slices.SortedFunc(slices.Values(edges), func(a, b schedule.Edge) int {
		low, distance := min(a.From, a.To), max(a.From, a.To)-min(a.From, a.To)
		otherLow, otherDistance := min(b.From, b.To), max(b.From, b.To)-min(b.From, b.To)
		return cmp.Or(cmp.Compare(distance, otherDistance),
			cmp.Compare(low/distance%2, otherLow/distance%2),
			cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To))
	}))
}

// open opens a link and moves a number over it, as the first move of a communicator may take long. It waits
// for the move also after a failure: the move may still use its tensor.
func (d *Direct) open(g *gpuLink, id []byte) (err error) {
	if g.comm, err = d.comms.Open(id, g.device, g.sends); err != nil {
		return err
	}
	c := torch.NewCtx(torch.Options{Device: g.device})
	defer c.Close()
	c.SetStream(g.copies)
	var number *torch.Tensor
	err = torch.Try(func() {
		c.Unlimited(func() { number = c.Zeros(torch.Float32, 1) })
	})
	if err == nil {
		err = d.comms.Transfer(g.comm, g.copies, []*torch.Tensor{number})
	}
	if err != nil {
		d.comms.Abort()
	}
	ended := torch.Try(func() { stream.End(stream.Host{}, g.copies) })
	return cmp.Or(err, ended, d.comms.Err())
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
