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

// gathers collects the parts of all ranks. This member's gathers follow one after the other. A rank
// is at most one gather ahead, as each gather needs a part of every rank.
type gathers struct {
	failure *outcome
	report  func(error)      // called if a rank has left without giving its part
	share   func(part) error // gives this member's part to all ranks, this one included
	closing chan struct{}    // closed when this member's transfers end
	allLeft chan struct{}    // closed when all ranks have left
	turn    sync.Mutex       // held during a gather

	mu    sync.Mutex
	parts [][]part      // by rank, of gathers that have not ended
	left  []bool        // by rank: whether it has left the group
	news  chan struct{} // of capacity one: a part has come, or a rank has left
}

// part is a rank's input of a gather, or an address of Gloo with its key.
type part struct {
	What string
	Data []byte
}

// errClosed ends calls that wait when this member leaves, and later calls.
var errClosed = errors.New("group: it was closed")

func newGathers(size int, failure *outcome, report func(error), share func(part) error) *gathers {
	return &gathers{failure: failure, report: report, share: share, closing: make(chan struct{}),
		allLeft: make(chan struct{}), parts: make([][]part, size), left: make([]bool, size),
		news: make(chan struct{}, 1)}
}

func (g *gathers) add(rank int, p part) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.parts[rank]) > 1 {
		return fmt.Errorf("%w: rank %d is two gathers ahead", errFrame, rank)
	}
	g.parts[rank] = append(g.parts[rank], p)
	notify(g.news)
	return nil
}

// markLeft notes that a rank has left without a failure.
func (g *gathers) markLeft(rank int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.left[rank] = true
	if !slices.Contains(g.left, false) && !closed(g.allLeft) {
		close(g.allLeft)
	}
	notify(g.news)
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

// take returns the next part of every rank. If a part is missing it returns nil, and an error if
// the part's rank has left.
func (g *gathers) take() (all []part, left error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for rank, parts := range g.parts {
		if len(parts) > 0 {
			all = append(all, parts[0])
		} else if g.left[rank] {
			left = leftError(rank)
		}
	}
	if len(all) < len(g.parts) {
		return nil, left
	}
	for rank, parts := range g.parts {
		g.parts[rank] = slices.Delete(parts, 0, 1)
	}
	return all, nil
}

// gather shares this member's part, and waits for the parts of all. A complete gather succeeds even
// if the group has failed since: a member may fail or leave as soon as it has the result.
func (g *gathers) gather(ctx context.Context, mine part) ([]part, error) {
	g.turn.Lock()
	defer g.turn.Unlock()
	if closed(g.closing) {
		return nil, errClosed
	}
	err := g.share(mine)
	for {
		all, left := g.take()
		switch {
		case all != nil:
			return all, mismatch(all)
		case err != nil:
			return nil, err
		case left != nil:
			g.report(left)
		}
		select {
		case <-g.news:
		case <-g.failure.failed:
			err = g.failure.get()
		case <-g.closing:
			err = cmp.Or(g.failure.get(), errClosed)
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
}

// mismatch returns an error if the members gather different things.
func mismatch(all []part) error {
	if !slices.ContainsFunc(all, func(p part) bool { return p.What != all[0].What }) {
		return nil
	}
	var at []string
	for rank, p := range all {
		at = append(at, fmt.Sprintf("rank %d at %q", rank, p.What))
	}
	return fmt.Errorf("group: the members gather different things: %s; want the same calls in the same "+
		"order on every rank", strings.Join(at, ", "))
}
