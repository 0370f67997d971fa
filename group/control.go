package group

import (
	"context"
	"errors"
	"fmt"
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
	ready    chan struct{} // closed when all members are connected
	goodbye  chan struct{} // closed when all others have left
	serves   sync.WaitGroup

	mu      sync.Mutex
	peers   map[int]*peer // by rank
	started bool          // ready is closed
	staying int           // how many others have not left
	leaving bool          // this member leaves in order
	refused string        // the last connection that was refused while members join
}

func newControl(c Config) *control {
	o := &control{cfg: c, first: newOutcome(), board: shim.NewBoard(), ready: make(chan struct{}),
		goodbye: make(chan struct{}), peers: map[int]*peer{}, staying: c.Size - 1}
	o.gathers = newGathers(c.Size, o.first, o.report)
	return o
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
func (c *control) take(from *peer, f frame) (err error) {
	switch {
	case f.kind == kindBeat:
		return nil
	case f.rank >= c.cfg.Size, f.rank == c.cfg.Rank, from.rank != 0 && f.rank != from.rank:
		// rank 0 hands on frames of others; nobody else speaks for another one
		return fmt.Errorf("%w: rank %d speaks for rank %d", errFrame, from.rank, f.rank)
	case f.kind == kindReady && from.rank == 0:
		c.mu.Lock()
		defer c.mu.Unlock()
		c.start()
		return nil
	case f.kind == kindEnd:
		reason := f.reason()
		if errors.Is(reason, errFrame) {
			return reason
		}
		c.judge(reason)
		return nil
	case f.kind == kindEntry:
		var e entry
		if err := f.decode(&e); err != nil {
			return err
		}
		c.board.Put(e.Key, e.Value)
	case f.kind == kindPart:
		var p part
		if err := f.decode(&p); err != nil {
			return err
		}
		defer func() { err = c.gathers.add(f.rank, p) }() // when it is handed on: this member answers later
	case f.kind == kindBye:
		defer c.leave(f.rank)
	default:
		return errFrame
	}
	c.tell(f, from)
	return nil
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
	} else {
		c.tell(endFrame(c.cfg.Rank, err), nil)
	}
}

// judge takes what rank 0 has decided, or decides at rank 0 about a failure. A member that has failed ends
// the group at once, like the end of a connection to rank 0. A broken connection between others may follow
// from such an end that rank 0 has not seen so far: it counts only after a while.
func (c *control) judge(err error) {
	if _, lost := err.(*LostError); lost && c.cfg.Rank == 0 {
		time.AfterFunc(link.VerdictTime, func() { c.end(err) })
	} else {
		c.end(err)
	}
}

// end records why the group has ended. Only the first reason counts. At rank 0 it is queued for the others
// before anybody here can know of it and close the group.
func (c *control) end(err error) {
	c.first.set(err, func() {
		if c.cfg.Rank == 0 {
			c.tell(endFrame(0, err), nil)
		}
	})
}

// ended is called when the connection to a peer has ended.
func (c *control) ended(p *peer, err error) {
	c.mu.Lock()
	if c.peers[p.rank] == p {
		delete(c.peers, p.rank)
	}
	started, leaving := c.started, c.leaving
	c.mu.Unlock()
	select {
	case <-c.gathers.closing:
		return
	default:
	}
	switch {
	case leaving && p.rank == 0: // nobody tells of the others any more
		for rank := range c.cfg.Size {
			c.leave(rank)
		}
	case leaving:
		c.tell(frame{kind: kindBye, rank: p.rank}, p)
		c.leave(p.rank)
	case c.cfg.Rank != 0, started && !c.gathers.hasLeft(p.rank): // before that a member may come again
		c.end(&LostError{Rank: p.rank, Why: p.why(err)})
	}
}

// leave notes that a member has left in order.
func (c *control) leave(rank int) {
	if rank == c.cfg.Rank || !c.gathers.leave(rank) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.staying--; c.staying == 0 {
		close(c.goodbye)
	}
}

func (c *control) gather(ctx context.Context, mine part) ([]part, error) {
	return c.gathers.gather(ctx, mine, func(p part) error {
		c.tell(jsonFrame(kindPart, c.cfg.Rank, p), nil)
		return c.gathers.add(c.cfg.Rank, p)
	})
}

// fail is the failure of this member. It waits until rank 0 has decided, a second at most.
func (c *control) fail(e *FailedError) {
	c.report(e)
	select {
	case <-c.first.failed:
	case <-c.gathers.closing:
	case <-time.After(time.Second):
		c.first.set(e, nil)
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
func (c *control) close() {
	if c.carrier != nil && c.first.get() == nil {
		c.leaveInOrder()
	}
	close(c.gathers.closing)
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
}
