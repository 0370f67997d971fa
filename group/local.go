package group

import (
	"sync"

	"penstock.example/internal/engine"
	"penstock.example/internal/link"
	"penstock.example/torch"
)

// Local returns n members within this process: goroutines stand for processes. They behave like
// members that have joined by Join, with two differences. A message that is longer than its receive
// panics, where Gloo would end the process. Close does not wait.
func Local(n int) []*Group {
	g := &localGroup{failure: newOutcome(), pending: map[channel][]*transfer{}}
	all := make([]*Group, n)
	for rank := range all {
		share := func(mine part) (err error) {
			for _, other := range g.gathers {
				err = other.add(rank, mine)
			}
			return err
		}
		g.gathers = append(g.gathers, newGathers(n, g.failure, g.fail, share))
		all[rank] = &Group{rank: rank, size: n, failure: g.failure, gathers: g.gathers[rank],
			member: &localMember{g, rank}}
	}
	return all
}

type localMember struct {
	*localGroup
	rank int
}

// localGroup is the state that the members of a Local share.
type localGroup struct {
	failure *outcome
	gathers []*gathers // by rank
	mu      sync.Mutex
	pending map[channel][]*transfer // transfers without the other side: only sends, or only receives
}

// channel identifies a send and its receive.
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

// end records a failure, and ends all transfers that wait. The caller has the lock.
func (g *localGroup) end(err error) {
	g.failure.set(err, nil)
	for _, waiting := range g.pending {
		for _, x := range waiting {
			x.err = g.failure.get()
			close(x.ended)
		}
	}
	clear(g.pending)
}

func (g *localGroup) fail(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.end(err)
}

func (m *localMember) send(t *torch.Tensor, to, tag int) (link.Work, error) {
	return m.begin(t, channel{m.rank, to, tag}, to, true)
}

func (m *localMember) receive(t *torch.Tensor, from, tag int) (link.Work, error) {
	return m.begin(t, channel{from, m.rank, tag}, from, false)
}

// begin begins a transfer. If the other side waits it moves the bytes at once.
func (g *localGroup) begin(t *torch.Tensor, ch channel, peer int, sends bool) (link.Work, error) {
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	c.SetGrad(false)
	var mine *torch.Tensor
	view := func() { mine = c.Op("aten::view.dtype", engine.InMemoryOrder(c, t), torch.Uint8) }
	if err := torch.Try(view); err != nil { // Gloo refuses such a tensor, too
		return nil, err
	}
	x := &transfer{t: t, sends: sends, ended: make(chan struct{})}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.gathers[peer].hasLeft(peer) {
		g.end(leftError(peer))
	}
	if err := g.failure.get(); err != nil {
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
	c.Copy_(c.Narrow(to, 0, 0, from.Numel()), from)
	close(other.ended)
	close(x.ended)
	return x, nil
}

func (m *localMember) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.gathers[m.rank].closing)
	for _, g := range m.gathers {
		g.markLeft(m.rank)
	}
	for ch := range m.pending {
		if ch.from == m.rank || ch.to == m.rank {
			m.end(leftError(m.rank))
			break
		}
	}
}
