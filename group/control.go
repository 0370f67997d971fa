package group

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"penstock.example/internal/link"
	"penstock.example/internal/shim"
)

// control is this member's part of the control connections, a star around rank 0: rank 0 has a peer for
// each other member, the others have one for rank 0. Rank 0 hands frames on to all, and decides which failure
// was the first.
type control struct {
	*carrier // of tensors; nil while the group joins
	cfg      Config
	first    *outcome
	gathers  *gathers
	board    shim.Board    // Gloo's addresses
	turn     sync.Mutex    // of gathers
	ready    chan struct{} // closed when all members are connected
	closing  chan struct{} // closed when this member leaves

	mu      sync.Mutex
	peers   map[int]*peer // by rank
	started bool          // ready is closed
	left    []bool        // by rank: it has left in order
	staying int           // how many others have not
	leaving bool          // this member leaves in order
	goodbye chan struct{} // closed when all others have left
	serves  sync.WaitGroup
}

func newControl(c Config) *control {
	return &control{
		cfg: c, first: newOutcome(), gathers: newGathers(c.Size), board: shim.NewBoard(),
		ready: make(chan struct{}), closing: make(chan struct{}), goodbye: make(chan struct{}),
		peers: map[int]*peer{}, left: make([]bool, c.Size), staying: c.Size - 1,
	}
}

// add starts the connection to a peer. The caller has the lock.
func (c *control) add(p *peer) {
	c.peers[p.rank] = p
	c.serves.Go(func() {
		p.serve(func(f frame) error { return c.take(p, f) }, func(err error) { c.ended(p, err) })
	})
}

// start notes that all members are connected. The caller has the lock.
func (c *control) start() {
	if !c.started {
		c.started = true
		close(c.ready)
	}
}

// take handles a frame.
func (c *control) take(from *peer, f frame) error {
	if f.kind == kindBeat {
		return nil
	}
	// Rank 0 hands on frames of others. No other member speaks for another one.
	if f.rank >= c.cfg.Size || f.rank == c.cfg.Rank || from.rank != 0 && f.rank != from.rank {
		return fmt.Errorf("%w: rank %d speaks for rank %d", errFrame, from.rank, f.rank)
	}
	switch {
	case f.kind == kindReady && from.rank == 0:
		c.mu.Lock()
		defer c.mu.Unlock()
		c.start()
		return nil
	case f.kind == kindRefused && from.rank == 0:
		c.first.set(&refusedError{string(f.body)}, nil)
		return nil
	case f.kind == kindEnd:
		var e ending
		if err := f.decode(&e); err != nil || e.Failed == nil && e.Lost == nil {
			return errFrame
		}
		switch {
		case c.cfg.Rank != 0:
			c.first.set(e.error(), nil)
		case e.Failed != nil:
			e.Failed.Rank = from.rank
			c.judge(e.Failed)
		default:
			c.judge(e.Lost)
		}
		return nil
	case f.kind == kindEntry:
		var e entry
		if err := f.decode(&e); err != nil {
			return err
		}
		c.board.Put(e.Key, e.Value)
	case f.kind == kindPart:
		var p part
		err := f.decode(&p)
		if err == nil {
			err = c.gathers.add(f.rank, p)
		}
		if err != nil {
			return err
		}
	case f.kind == kindBye:
		defer c.leave(f.rank)
	default:
		return errFrame
	}
	c.tell(f, from)
	return nil
}

// ending is the body of an end: one of two errors.
type ending struct {
	Failed *FailedError `json:",omitempty"`
	Lost   *LostError   `json:",omitempty"`
}

func (e ending) error() error {
	if e.Failed != nil {
		return e.Failed
	}
	return e.Lost
}

func endFrame(rank int, err error) frame {
	var e ending
	switch err := err.(type) {
	case *FailedError:
		e.Failed = &FailedError{err.bounded()}
	case *LostError:
		e.Lost = &LostError{err.Rank, cut(err.Why, maxText)}
	}
	return jsonFrame(kindEnd, rank, e)
}

// tell sends a frame to all peers but one.
func (c *control) tell(f frame, but *peer) {
	b := f.encode()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.peers {
		if p != but {
			p.send(b)
		}
	}
}

// report lets rank 0 decide about a failure that this member has seen.
func (c *control) report(err error) {
	if c.cfg.Rank == 0 {
		c.judge(err)
		return
	}
	c.tell(endFrame(c.cfg.Rank, err), nil)
}

// judge decides at rank 0 about a failure. A member that has failed ends the group at once, like the end of
// a connection to rank 0. A broken connection between others may follow from such an end that rank 0 has not
// seen so far: it counts only after a while.
func (c *control) judge(err error) {
	if _, lost := err.(*LostError); lost {
		time.AfterFunc(link.VerdictTime, func() { c.end(err) })
		return
	}
	c.end(err)
}

// end records at rank 0 why the group has ended, and tells the others. Only the first reason counts. It is
// queued for the others before anybody here can know of it and close the group.
func (c *control) end(err error) {
	c.first.set(err, func() {
		if e, ok := err.(*refusedError); ok {
			c.tell(frame{kindRefused, 0, []byte(e.text)}, nil)
			return
		}
		c.tell(endFrame(0, err), nil)
	})
}

// ended is called when the connection to a peer has ended.
func (c *control) ended(p *peer, err error) {
	c.mu.Lock()
	if c.peers[p.rank] == p {
		delete(c.peers, p.rank)
	}
	started, left, leaving := c.started, c.left[p.rank], c.leaving
	c.mu.Unlock()
	select {
	case <-c.closing:
		return
	default:
	}
	lost := &LostError{Rank: p.rank, Why: p.why(err)}
	switch {
	case leaving && p.rank == 0: // nobody tells of the others any more
		for rank := range c.left {
			c.leave(rank)
		}
	case leaving:
		c.tell(frame{kind: kindBye, rank: p.rank}, p)
		c.leave(p.rank)
	case c.cfg.Rank != 0:
		c.first.set(lost, nil)
	case started && !left: // before all are connected, a member may go and come again
		c.end(lost)
	}
}

// leave notes that a member has left in order.
func (c *control) leave(rank int) {
	c.mu.Lock()
	if rank != c.cfg.Rank && !c.left[rank] {
		c.left[rank] = true
		if c.staying--; c.staying == 0 {
			close(c.goodbye)
		}
	}
	c.mu.Unlock()
	c.missLeavers()
}

const hasLeft = "it has left the group"

// missLeavers reports members that have left although a gather waits for them.
func (c *control) missLeavers() {
	c.mu.Lock()
	left := slices.Clone(c.left)
	c.mu.Unlock()
	for rank, gone := range left {
		if gone && c.gathers.wants(rank) {
			c.report(&LostError{Rank: rank, Why: hasLeft})
		}
	}
}

func (c *control) gather(ctx context.Context, what string, mine []byte) ([][]byte, error) {
	c.turn.Lock()
	defer c.turn.Unlock()
	select {
	case <-c.closing: // the others miss this member
		return nil, errClosed
	default:
	}
	one := c.gathers.begin()
	p := part{one.number, what, slices.Clone(mine)}
	c.tell(jsonFrame(kindPart, c.cfg.Rank, p), nil)
	if err := c.gathers.add(c.cfg.Rank, p); err != nil {
		return nil, err
	}
	c.missLeavers()
	return one.wait(ctx, c.first, c.closing)
}

// errClosed is the error of calls that wait when this member leaves, and of later calls.
var errClosed = errors.New("group: it was closed")

// fail is the failure of this member. It waits until rank 0 has decided, a second at most.
func (c *control) fail(f Failure) {
	err := &FailedError{f}
	c.report(err)
	select {
	case <-c.first.failed:
	case <-c.closing:
	case <-time.After(time.Second):
		c.first.set(err, nil)
	}
}

// leaveInOrder waits until all others leave as well, so that none of them misses this member. It waits no
// longer than a silence, and not if the group has failed.
func (c *control) leaveInOrder() {
	c.mu.Lock()
	c.leaving = true
	c.mu.Unlock()
	c.tell(frame{kind: kindBye, rank: c.cfg.Rank}, nil)
	select {
	case <-c.goodbye:
	case <-c.first.failed:
	case <-time.After(c.cfg.Silence):
	}
}

// close leaves the group, in order if it has not failed. It is also the end of a join that has failed.
func (c *control) close() error {
	if c.carrier != nil && c.first.get() == nil {
		c.leaveInOrder()
	}
	close(c.closing)
	if c.carrier != nil {
		c.carrier.close()
	}
	c.board.Close()
	c.mu.Lock()
	for _, p := range c.peers {
		p.stop()
	}
	c.mu.Unlock()
	c.serves.Wait()
	return nil
}
