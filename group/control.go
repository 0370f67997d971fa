package group

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"penstock.example/internal/link"
	"penstock.example/internal/shim"
)

// control has this member's control connections. They are a star: rank 0 has a peer for each other
// member, and the others have one peer, rank 0. Rank 0 forwards frames to all, and decides which
// failure was first.
type control struct {
	*tensorTransport // nil while the group joins
	cfg              Config
	failure          *outcome
	gathers          *gathers
	board            shim.Board     // Gloo's addresses
	ready            chan struct{}  // closed when all members are connected
	serves           sync.WaitGroup // goroutines that serve connections

	mu      sync.Mutex
	peers   map[int]*peer // by rank
	refused string        // the last connection that was refused
}

func newControl(c Config) *control {
	o := &control{cfg: c, failure: newOutcome(), board: shim.NewBoard(), ready: make(chan struct{}),
		peers: map[int]*peer{}}
	o.gathers = newGathers(c.Size, o.failure, o.report, func(mine part) error {
		o.broadcast(jsonFrame(kindPart, c.Rank, mine), nil)
		return o.gathers.add(c.Rank, mine)
	})
	return o
}

// add starts the connection to a peer. The caller has the lock.
func (c *control) add(p *peer) {
	c.peers[p.rank] = p
	c.serves.Go(func() {
		p.serve(func(f frame) error { return c.handle(p, f) }, func(err error) { c.disconnected(p, err) })
	})
}

func (c *control) handle(from *peer, f frame) (err error) {
	switch {
	case f.kind == kindBeat:
		return nil
	case f.rank >= c.cfg.Size, f.rank == c.cfg.Rank, from.rank != 0 && f.rank != from.rank:
		// only rank 0 forwards frames of others
		return fmt.Errorf("%w: rank %d speaks for rank %d", errFrame, from.rank, f.rank)
	case f.kind == kindReady && from.rank == 0 && !closed(c.ready):
		close(c.ready)
		return nil
	case f.kind == kindEnd:
		reason := f.reason()
		if errors.Is(reason, errFrame) {
			return reason
		}
		c.judge(reason)
		return nil
	case f.kind == kindAddress, f.kind == kindPart:
		var p part
		if err := f.decode(&p); err != nil {
			return err
		}
		if f.kind == kindAddress {
			c.board.Put(p.What, p.Data)
			break
		}
		defer func() { err = c.gathers.add(f.rank, p) }() // after it is forwarded
	case f.kind == kindBye:
		defer c.gathers.markLeft(f.rank)
	default:
		return errFrame
	}
	c.broadcast(f, from)
	return nil
}

func (c *control) broadcast(f frame, except *peer) {
	b := f.encode()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.peers {
		if p != except {
			p.send(b)
		}
	}
}

// report asks rank 0 for its decision on a failure that this member has seen.
func (c *control) report(err error) {
	if c.cfg.Rank == 0 {
		c.judge(err)
	} else {
		c.broadcast(endFrame(c.cfg.Rank, err), nil)
	}
}

// judge ends the group because of a failure. At rank 0 a loss counts only after VerdictTime: a
// connection between two members may have broken because of a failure that rank 0 has not seen yet.
func (c *control) judge(err error) {
	if _, lost := err.(*LostError); lost && c.cfg.Rank == 0 {
		time.AfterFunc(link.VerdictTime, func() { c.end(err) })
	} else {
		c.end(err)
	}
}

// end records why the group has ended. Only the first reason counts. Rank 0 queues the reason for
// the others before anybody in this process can learn it and close the group.
func (c *control) end(err error) {
	c.failure.set(err, func() {
		if c.cfg.Rank == 0 {
			c.broadcast(endFrame(0, err), nil)
		}
	})
}

// disconnected handles the end of the connection to a peer.
func (c *control) disconnected(p *peer, err error) {
	c.mu.Lock()
	if c.peers[p.rank] == p {
		delete(c.peers, p.rank)
	}
	started, leaving := closed(c.ready), c.gathers.hasLeft(c.cfg.Rank)
	c.mu.Unlock()
	switch {
	case closed(c.gathers.closing):
	case leaving && p.rank == 0: // no news of the others will come
		for rank := range c.cfg.Size {
			c.gathers.markLeft(rank)
		}
	case leaving:
		c.broadcast(frame{kind: kindBye, rank: p.rank}, p)
		c.gathers.markLeft(p.rank)
	case c.cfg.Rank != 0, started && !c.gathers.hasLeft(p.rank): // before the start, a member may call again
		c.end(&LostError{Rank: p.rank, Why: p.why(err)})
	}
}

// fail reports a failure of this member, and waits a second at most for rank 0's decision.
func (c *control) fail(err error) {
	c.report(err)
	select {
	case <-c.failure.failed:
	case <-c.gathers.closing:
	case <-time.After(time.Second):
		c.failure.set(err, nil)
	}
}

// close leaves the group, or ends a join that has failed. Unless the group has failed, it first
// waits until all others leave, at most Config.Silence, so that none of them takes this member for
// lost.
func (c *control) close() {
	joined := c.tensorTransport != nil
	if joined && c.failure.get() == nil {
		c.gathers.markLeft(c.cfg.Rank)
		c.broadcast(frame{kind: kindBye, rank: c.cfg.Rank}, nil)
		select {
		case <-c.gathers.allLeft:
		case <-c.failure.failed:
		case <-time.After(c.cfg.Silence):
		}
	}
	if close(c.gathers.closing); joined {
		c.tensorTransport.close()
	}
	c.board.Close()
	c.mu.Lock()
	for _, p := range c.peers {
		p.stop()
	}
	c.mu.Unlock()
	c.serves.Wait()
}
