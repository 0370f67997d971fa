package group

import (
	"context"
	"fmt"
	"sync"

	"penstock.example/internal/link"
	"penstock.example/torch"
)

// Local returns n members within this process, such as replicas of a pipeline: goroutines stand for
// processes. They do as those of Join with Gloo: a send waits for its receive, and tags match by
// name. A receive of less than is sent panics, where Gloo would end the process.
// Close does not wait. Local panics if n is below 1.
func Local(n int) []*Group {
	if n < 1 {
		panic(fmt.Sprintf("group: Local of %d members; want at least 1", n))
	}
	o := newOutcome()
	r := &room{first: o, left: make([]bool, n), posts: map[edge]*posts{}}
	for range n {
		r.gathers = append(r.gathers, newGathers(n))
	}
	all := make([]*Group, n)
	for rank := range all {
		all[rank] = &Group{rank: rank, size: n, first: o, member: &local{r, rank}}
	}
	return all
}

// local is a member of a room.
type local struct {
	*room
	rank int
}

// room is what the members of Local share.
type room struct {
	first   *outcome
	mu      sync.Mutex
	left    []bool          // by rank: it has called Close
	posts   map[edge]*posts // transfers that wait for the other side
	gathers []*gathers      // by rank
}

// edge is where a send and its receive meet.
type edge struct{ from, to, tag int }

type posts struct{ sends, receives []*post }

// post is a transfer whose other side may still be missing.
type post struct {
	room  *room
	t     *torch.Tensor
	ended chan struct{}
}

func (p *post) Wait() error {
	select {
	case <-p.ended:
		return nil
	case <-p.room.first.failed:
	}
	// A transfer takes place with the lock held, and none after the failure: see meet.
	p.room.mu.Lock()
	defer p.room.mu.Unlock()
	select {
	case <-p.ended:
		return nil
	default:
		return p.room.first.get()
	}
}

func (m *local) send(t *torch.Tensor, to, tag int) (link.Work, error) {
	return m.meet(t, edge{m.rank, to, tag}, to, true)
}

func (m *local) receive(t *torch.Tensor, from, tag int) (link.Work, error) {
	return m.meet(t, edge{from, m.rank, tag}, from, false)
}

// meet moves the bytes if the other side is there, and waits for it otherwise.
func (r *room) meet(t *torch.Tensor, e edge, peer int, sends bool) (link.Work, error) {
	mine := &post{r, t, make(chan struct{})}
	if err := dense(t); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left[peer] {
		r.first.set(&LostError{Rank: peer, Why: hasLeft}, nil)
	}
	if err := r.first.get(); err != nil {
		return nil, err
	}
	p := r.posts[e]
	if p == nil {
		p = &posts{}
		r.posts[e] = p
	}
	if sends {
		p.sends = append(p.sends, mine)
	} else {
		p.receives = append(p.receives, mine)
	}
	if len(p.sends) > 0 && len(p.receives) > 0 {
		s, d := p.sends[0], p.receives[0]
		p.sends, p.receives = p.sends[1:], p.receives[1:]
		move(d.t, s.t, e)
		close(s.ended)
		close(d.ended)
	}
	if len(p.sends)+len(p.receives) == 0 {
		delete(r.posts, e)
	}
	return mine, nil
}

// dense refuses a tensor that Gloo would.
func dense(t *torch.Tensor) error {
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	return torch.Try(func() { c.InMemoryOrder(t) })
}

// move copies the memory of one tensor to another.
func move(to, from *torch.Tensor, e edge) {
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	c.SetGrad(false)
	source, target := c.InMemoryOrder(from), c.InMemoryOrder(to)
	if n := source.Numel(); source.DType() == target.DType() && n <= target.Numel() {
		c.Copy_(c.Narrow(target, 0, 0, n), source)
		return
	}
	content, all := torch.Bytes(source), torch.Bytes(target)
	if len(content) > len(all) {
		panic(fmt.Sprintf("group: rank %d sends %v to rank %d under tag %d, which receives %v; want room for it", e.from, from, e.to, e.tag, to))
	}
	copy(all, content)
	if err := torch.SetBytes(target, all); err != nil {
		panic(err.Error())
	}
}

func (m *local) gather(ctx context.Context, what string, mine []byte) ([][]byte, error) {
	one, err := m.enter(what, mine)
	if err != nil {
		return nil, err
	}
	return one.wait(ctx, m.first, nil)
}

// enter adds a member's part to the next gathering of all.
func (m *local) enter(what string, mine []byte) (*gathering, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.left[m.rank] { // the others miss it
		return nil, errClosed
	}
	one := m.gathers[m.rank].begin()
	for _, g := range m.gathers {
		for _, p := range one.parts(m.rank, what, mine) {
			if err := g.add(p); err != nil {
				return nil, err
			}
		}
	}
	for rank, left := range m.left {
		if left && m.gathers[m.rank].wants(rank) {
			m.first.set(&LostError{Rank: rank, Why: hasLeft}, nil)
		}
	}
	return one, nil
}

func (m *local) fail(f Failure) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.first.set(&FailedError{f}, nil)
}

func (m *local) close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.left[m.rank] = true
	lost := false
	for e := range m.posts {
		lost = lost || e.from == m.rank || e.to == m.rank
	}
	for _, g := range m.gathers {
		lost = lost || g.wants(m.rank)
	}
	if lost {
		m.first.set(&LostError{Rank: m.rank, Why: hasLeft}, nil)
	}
	return nil
}
