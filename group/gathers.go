package group

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// gathers are the gathers that a member has not finished. A member can only be one gather ahead of
// another, as each gather needs a part of every member.
type gathers struct {
	size  int
	mu    sync.Mutex
	begun uint64 // how many this member has begun
	open  map[uint64]*gathering
}

// gathering is one gather.
type gathering struct {
	number uint64
	begun  bool // by this member
	what   []string
	bytes  [][]byte
	there  []bool // by rank: its bytes are complete
	ended  chan struct{}
}

func newGathers(size int) *gathers { return &gathers{size: size, open: map[uint64]*gathering{}} }

// get returns an open gathering, or a new one.
func (g *gathers) get(number uint64) *gathering {
	one := g.open[number]
	if one == nil {
		one = &gathering{number: number, what: make([]string, g.size), bytes: make([][]byte, g.size),
			there: make([]bool, g.size), ended: make(chan struct{})}
		g.open[number] = one
	}
	return one
}

// begin returns this member's next gather.
func (g *gathers) begin() *gathering {
	g.mu.Lock()
	defer g.mu.Unlock()
	one := g.get(g.begun)
	one.begun = true
	g.begun++
	return one
}

// add adds a rank's bytes. It refuses those of a gather that is not open.
func (g *gathers) add(rank int, p part) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	one := g.open[p.Number]
	if one == nil && p.Number == g.begun {
		one = g.get(p.Number)
	}
	if one == nil || one.there[rank] {
		return fmt.Errorf("%w: gather %d of rank %d when this member is at %d", errFrame, p.Number, rank,
			g.begun)
	}
	one.what[rank], one.bytes[rank], one.there[rank] = p.What, p.Data, true
	if !slices.Contains(one.there, false) {
		delete(g.open, p.Number)
		close(one.ended)
	}
	return nil
}

// wants reports whether this member waits for a rank.
func (g *gathers) wants(rank int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, one := range g.open {
		if one.begun && !one.there[rank] {
			return true
		}
	}
	return false
}

// wait waits for the end of a gather. A result counts, whatever has failed since: a member that has its
// result may fail or leave before another has looked at it. closing is closed when this member leaves.
func (one *gathering) wait(ctx context.Context, first *outcome, closing <-chan struct{}) ([][]byte, error) {
	var err error
	select {
	case <-one.ended:
	case <-first.failed:
		err = first.get()
	case <-closing:
		err = cmp.Or(first.get(), errClosed)
	case <-ctx.Done():
		err = ctx.Err()
	}
	select {
	case <-one.ended:
		return one.result()
	default:
		return nil, err
	}
}

// result returns the bytes of all, or an error if the members gather different things.
func (one *gathering) result() ([][]byte, error) {
	if len(slices.Compact(slices.Clone(one.what))) == 1 {
		return one.bytes, nil
	}
	var at []string
	for rank, w := range one.what {
		at = append(at, fmt.Sprintf("rank %d at %q", rank, w))
	}
	return nil, fmt.Errorf("group: the members gather different things: %s; "+
		"want the same calls in the same order on every rank", strings.Join(at, ", "))
}
