package group

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"penstock.example/internal/engine"
	"penstock.example/internal/link"
	"penstock.example/torch"
)

// Local returns n members within this process, such as replicas of a pipeline: goroutines stand for
// processes. They behave like members of Join: a send waits for its receive, and tags match by name. A
// message that is longer than its receive panics, where Gloo would end the process. Close does not
// wait. Local panics if n is below 1.
func Local(n int) []*Group {
	if n < 1 {
		panic(fmt.Sprintf("group: Local of %d members; want at least 1", n))
	}
	g := &localGroup{first: newOutcome(), left: make([]bool, n), pending: map[channel][]*transfer{}}
	all := make([]*Group, n)
	for rank := range all {
		g.gathers = append(g.gathers, newGathers(n))
		all[rank] = &Group{rank: rank, size: n, first: g.first, member: &localMember{g, rank}}
	}
	return all
}

type localMember struct {
	*localGroup
	rank int
}

// localGroup is shared by the members of Local.
type localGroup struct {
	first   *outcome
	mu      sync.Mutex
	left    []bool                  // by rank: it has called Close
	pending map[channel][]*transfer // either sends or receives, which wait for the other side
	gathers []*gathers              // by rank
}

// channel is where a send and its receive meet.
type channel struct{ from, to, tag int }

type transfer struct {
	t     *torch.Tensor
	sends bool
	ended chan struct{}
	err   error
}

func (x *transfer) Wait() error {
	<-x.ended
	return x.err
}

// end fails the group, and with it all transfers that wait. The caller has the lock.
func (g *localGroup) end(err error) {
	g.first.set(err, func() {
		for _, waiting := range g.pending {
			for _, x := range waiting {
				x.err = err
				close(x.ended)
			}
		}
		clear(g.pending)
	})
}

func (m *localMember) send(t *torch.Tensor, to, tag int) (link.Work, error) {
	return m.meet(t, channel{m.rank, to, tag}, to, true)
}

func (m *localMember) receive(t *torch.Tensor, from, tag int) (link.Work, error) {
	return m.meet(t, channel{from, m.rank, tag}, from, false)
}

// meet moves the bytes if the other side has called, and otherwise lets it find this side.
func (g *localGroup) meet(t *torch.Tensor, ch channel, peer int, sends bool) (link.Work, error) {
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	c.SetGrad(false)
	var mine *torch.Tensor
	// as of Gloo
	if err := torch.Try(func() {
		mine = c.Op("aten::view.dtype", engine.InMemoryOrder(c, t),
			torch.Uint8)
	}); err != nil {
		return nil, err
	}
	x := &transfer{t: t, sends: sends, ended: make(chan struct{})}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.left[peer] {
		g.end(&LostError{Rank: peer, Why: hasLeft})
	}
	if err := g.first.get(); err != nil {
		return nil, err
	}
	waiting := g.pending[ch]
	if len(waiting) == 0 || waiting[0].sends == sends {
		g.pending[ch] = append(waiting, x)
		return x, nil
	}
	other := waiting[0]
	if g.pending[ch] = waiting[1:]; len(waiting) == 1 {
		delete(g.pending, ch)
	}
	from, to := mine, c.Op("aten::view.dtype", engine.InMemoryOrder(c, other.t), torch.Uint8)
	if !sends {
		from, to = to, from
	}
	if from.Numel() > to.Numel() {
		panic(fmt.Sprintf("group: rank %d sends %d bytes to rank %d under tag %d, which receives %d",
			ch.from, from.Numel(), ch.to, ch.tag, to.Numel()))
	}
	c.Copy_(c.Narrow(to, 0, 0, from.Numel()), from)
	close(other.ended)
	close(x.ended)
	return x, nil
}

func (m *localMember) gather(ctx context.Context, what string, mine []byte) ([][]byte, error) {
	m.mu.Lock()
	if m.left[m.rank] { // the others miss it
		m.mu.Unlock()
		return nil, errClosed
	}
	one := m.gathers[m.rank].begin()
	for _, g := range m.gathers {
		if err := g.add(m.rank, part{one.number, what, slices.Clone(mine)}); err != nil {
			m.mu.Unlock()
			return nil, err
		}
	}
	for rank, left := range m.left {
		if left && m.gathers[m.rank].wants(rank) {
			m.end(&LostError{Rank: rank, Why: hasLeft})
		}
	}
	m.mu.Unlock()
	return one.wait(ctx, m.first, nil)
}

func (m *localMember) fail(f Failure) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.end(&FailedError{f})
}

func (m *localMember) close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.left[m.rank] = true
	lost := false
	for ch := range m.pending {
		lost = lost || ch.from == m.rank || ch.to == m.rank
	}
	for _, g := range m.gathers {
		lost = lost || g.wants(m.rank)
	}
	if lost {
		m.end(&LostError{Rank: m.rank, Why: hasLeft})
	}
	return nil
}
