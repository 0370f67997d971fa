package group

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// control is this member's part of the control connections, a star around rank 0: rank 0 has a
// peer for each other member, the others have one for rank 0, which hands on what is for all.
type control struct {
	cfg     Config
	first   *outcome
	gathers *gathers
	turn    sync.Mutex    // of gathers
	ready   chan struct{} // closed when all members are there
	closing chan struct{} // closed when this member leaves

	mu      sync.Mutex
	peers   map[int]*peer // by rank
	started bool          // all members are there
	left    []bool        // by rank: it has left in good order
	leaving bool          // this member says goodbye
	goodbye chan struct{} // closed when all others have left
	last    sync.Once     // of goodbye
	waiting string        // at a member that waits for the others: for whom
	readers sync.WaitGroup
}

func newControl(c Config) *control {
	return &control{
		cfg: c, first: newOutcome(), gathers: newGathers(c.Size), ready: make(chan struct{}), closing: make(chan struct{}),
		peers: map[int]*peer{}, left: make([]bool, c.Size), goodbye: make(chan struct{}),
	}
}

// add starts the connection to a peer.
func (c *control) add(p *peer) {
	c.mu.Lock()
	c.peers[p.rank] = p
	c.mu.Unlock()
	c.readers.Go(p.write)
	c.readers.Go(func() {
		err := p.read(c.may, func(m message) error { return c.take(p, m) })
		c.ended(p, err)
	})
}

// may says which messages come after the handshake.
func (c *control) may(k kind) bool {
	switch k {
	case kindBeat, kindPart, kindFailed, kindLost, kindBye:
		return true
	}
	return c.cfg.Rank != 0 && (k == kindRefusal || k == kindWaiting || k == kindReady)
}

// take does what a message asks for.
func (c *control) take(from *peer, m message) error {
	switch m := m.(type) {
	case waiting:
		c.mu.Lock()
		c.waiting = m.text
		c.mu.Unlock()
	case ready:
		c.start()
	case refusal:
		c.first.set(&refusedError{m.text}, nil)
	case part:
		if err := c.speaks(from, m.rank); err != nil {
			return err
		}
		if err := c.gathers.add(m); err != nil {
			return err
		}
		c.tell(m, from)
	case failed:
		if err := c.speaks(from, m.Rank); err != nil {
			return err
		}
		c.mu.Lock()
		from.ending = true
		c.mu.Unlock()
		c.end(&FailedError{Failure(m)}, from)
	case lost:
		if m.Rank < 0 || m.Rank >= c.cfg.Size {
			return fmt.Errorf("%w: rank %d is lost", errMessage, m.Rank)
		}
		l := LostError(m)
		c.end(&l, from)
	case bye:
		if err := c.speaks(from, m.rank); err != nil {
			return err
		}
		c.tell(m, from)
		c.leave(m.rank)
	}
	return nil
}

// speaks refuses what a peer says in the name of another member. Rank 0 speaks for all.
func (c *control) speaks(from *peer, rank int) error {
	if rank < 0 || rank >= c.cfg.Size || rank == c.cfg.Rank || from.rank != 0 && rank != from.rank {
		return fmt.Errorf("%w: rank %d speaks for rank %d", errMessage, from.rank, rank)
	}
	return nil
}

// start says that all members are there.
func (c *control) start() {
	c.mu.Lock()
	was := c.started
	c.started = true
	c.mu.Unlock()
	if !was {
		close(c.ready)
	}
}

// tell sends a message to all peers but one.
func (c *control) tell(m message, but *peer) {
	f := frame(m)
	var ends bool
	switch m.(type) {
	case failed, lost, refusal:
		ends = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.peers {
		if p != but {
			p.enqueue(outgoing{frame: f})
			p.ending = p.ending || ends
		}
	}
}

// knows reports whether a peer was told that the group has failed, or has said so.
func (c *control) knows(p *peer) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return p.ending
}

// end records the end of the group and tells it to the others, if it is the first. That is queued
// before anybody here knows: who does may close the group at once, which sends what is queued.
func (c *control) end(err error, heardFrom *peer) {
	c.first.set(err, func() {
		switch err := err.(type) {
		case *FailedError:
			c.tell(failed(err.Failure.bounded()), heardFrom)
		case *LostError:
			c.tell(lost{err.Rank, cut(err.Why, MaxMessage)}, heardFrom)
		}
	})
}

// ended is called when the connection to a peer has ended.
func (c *control) ended(p *peer, err error) {
	c.mu.Lock()
	current := c.peers[p.rank] == p
	if current {
		delete(c.peers, p.rank)
	}
	started, left, leaving := c.started, c.left[p.rank], c.leaving
	c.mu.Unlock()
	select {
	case <-c.closing:
		return
	default:
	}
	if leaving {
		// Who is gone now will say nothing more, and rank 0 nothing of anybody.
		c.tell(bye{p.rank}, p)
		if c.leave(p.rank); p.rank == 0 {
			c.last.Do(func() { close(c.goodbye) })
		}
		return
	}
	// A member that is gone before all are there may come again.
	if current && !left && (started || c.cfg.Rank != 0) {
		c.end(&LostError{Rank: p.rank, Why: p.why(err)}, nil)
	}
}

// leave says that a member has left in good order. It is missed if something waits for it.
func (c *control) leave(rank int) {
	c.mu.Lock()
	if c.left[rank] {
		c.mu.Unlock()
		return
	}
	c.left[rank] = true
	all := true
	for r, left := range c.left {
		all = all && (left || r == c.cfg.Rank)
	}
	c.mu.Unlock()
	if all {
		c.last.Do(func() { close(c.goodbye) })
	}
	if c.gathers.wants(rank) {
		c.end(&LostError{Rank: rank, Why: hasLeft}, nil)
	}
}

const hasLeft = "it has left the group"

func (c *control) gather(ctx context.Context, what string, mine []byte) ([][]byte, error) {
	c.turn.Lock()
	defer c.turn.Unlock()
	select {
	case <-c.closing: // the others miss it
		return nil, errClosed
	default:
	}
	one := c.gathers.begin()
	for _, p := range one.parts(c.cfg.Rank, what, mine) {
		c.tell(p, nil)
		if err := c.gathers.add(p); err != nil {
			return nil, err
		}
	}
	c.mu.Lock()
	left := append([]bool(nil), c.left...)
	c.mu.Unlock()
	for rank, gone := range left {
		if gone && c.gathers.wants(rank) {
			c.end(&LostError{Rank: rank, Why: hasLeft}, nil)
		}
	}
	return one.wait(ctx, c.first, c.closing)
}

// errClosed is the error of calls that wait when this member leaves, and of later ones.
var errClosed = errors.New("group: it was closed")

// fail is the failure of this member. It blocks until the others can know of it, a second at most.
func (c *control) fail(f Failure) {
	c.end(&FailedError{f}, nil)
	c.flush(time.Second)
}

// flush waits until all was sent.
func (c *control) flush(timeout time.Duration) {
	c.mu.Lock()
	peers := make([]*peer, 0, len(c.peers))
	for _, p := range c.peers {
		peers = append(peers, p)
	}
	c.mu.Unlock()
	var all sync.WaitGroup
	for _, p := range peers {
		all.Go(func() { p.flush(timeout) })
	}
	all.Wait()
}

// sayGoodbye leaves in good order: it waits until all others leave as well, so that none of them
// misses it. It waits for a silence at most, and not where the group has failed.
func (c *control) sayGoodbye() {
	c.mu.Lock()
	c.leaving = true
	c.mu.Unlock()
	c.tell(bye{c.cfg.Rank}, nil)
	select {
	case <-c.goodbye:
	case <-c.first.failed:
	case <-time.After(c.cfg.Silence):
	}
	c.flush(time.Second)
}

// close ends all connections and waits for those who serve them. closing is closed by then.
func (c *control) close() {
	c.mu.Lock()
	for _, p := range c.peers {
		p.stop()
	}
	c.mu.Unlock()
	c.readers.Wait()
}
