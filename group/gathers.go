package group

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// gathers has the parts that ranks have given to gathers of this member, one gather after the other. A member
// can only be one gather ahead of another, as each gather needs a part of every member.
type gathers struct {
	first   *outcome
	closing chan struct{} // closed when this member leaves
	lost    func(error)   // is told of a rank that has left without its part
	turn    sync.Mutex    // held by a gather of this member

	mu    sync.Mutex
	parts [][]part      // by rank: those of gathers that have not ended
	left  []bool        // by rank: it has left the group
	more  chan struct{} // of capacity one: a part has come, or a rank has left
}

// part is what a rank gives to a gather.
type part struct {
	What string
	Data []byte
}

// errClosed is the error of calls that wait when this member leaves, and of later calls.
var errClosed = errors.New("group: it was closed")

func newGathers(size int, first *outcome, lost func(error)) *gathers {
	return &gathers{first: first, closing: make(chan struct{}), lost: lost,
		parts: make([][]part, size), left: make([]bool, size), more: make(chan struct{}, 1)}
}

// add adds a rank's part.
func (g *gathers) add(rank int, p part) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.parts[rank]) > 1 {
		return fmt.Errorf("%w: rank %d is two gathers ahead", errFrame, rank)
	}
	g.parts[rank] = append(g.parts[rank], p)
	notify(g.more)
	return nil
}

// leave notes that a rank has left. It reports whether that is news.
func (g *gathers) leave(rank int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	news := !g.left[rank]
	g.left[rank] = true
	notify(g.more)
	return news
}

func (g *gathers) hasLeft(rank int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.left[rank]
}

func leftError(rank int) error { return &LostError{Rank: rank, Why: "it has left the group"} }

// notify puts an element into a channel of capacity one, if it is empty.
func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// take returns the next part of every rank. If one is missing it returns nil, and a rank that has left
// without its part, or -1.
func (g *gathers) take() (all []part, gone int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	gone, complete := -1, true
	for rank, parts := range g.parts {
		if len(parts) == 0 {
			if complete = false; g.left[rank] {
				gone = rank
			}
		}
	}
	if !complete {
		return nil, gone
	}
	for rank, parts := range g.parts {
		all = append(all, parts[0])
		g.parts[rank] = slices.Delete(parts, 0, 1)
	}
	return all, -1
}

// gather gives this member's part to all by tell, and waits for the parts of all. A result counts, whatever
// has failed since: a member that has its result may fail or leave before another has looked at it.
func (g *gathers) gather(ctx context.Context, mine part, tell func(part) error) ([]part, error) {
	g.turn.Lock()
	defer g.turn.Unlock()
	select {
	case <-g.closing: // the others miss this member
		return nil, errClosed
	default:
	}
	err := tell(mine)
	for {
		all, gone := g.take()
		switch {
		case all != nil:
			return all, different(all)
		case err != nil:
			return nil, err
		case gone >= 0:
			g.lost(leftError(gone))
		}
		select {
		case <-g.more:
		case <-g.first.failed:
			err = g.first.get()
		case <-g.closing:
			err = cmp.Or(g.first.get(), errClosed)
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
}

// different is an error if the members gather different things, and otherwise nil.
func different(all []part) error {
	var at []string
	equal := true
	for rank, p := range all {
		at = append(at, fmt.Sprintf("rank %d at %q", rank, p.What))
		equal = equal && p.What == all[0].What
	}
	if equal {
		return nil
	}
	return fmt.Errorf("group: the members gather different things: %s; want the same calls in the same "+
		"order on every rank", strings.Join(at, ", "))
}
