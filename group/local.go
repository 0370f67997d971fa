package group

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"penstock/internal/link"
	"penstock/torch"
)

// Local returns n members within this process, for tests: goroutines stand for processes. They
// do as those of Join with Gloo: a send waits for its receive, and tags match by name. A receive of
// another size than is sent panics, where Gloo would end the process or leave a part unwritten.
// Close does not wait. Local panics if n is below 1.
func Local(n int) []*Group {
	if n < 1 {
		panic(fmt.Sprintf("group: Local of %d members; want at least 1", n))
	}
	o := newOutcome()
	r := &room{first: o, left: make([]bool, n), at: make([]int, n), posts: map[edge]*posts{}, gathers: map[int]*gathering{}}
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
	left    []bool             // by rank: it has called Close
	posts   map[edge]*posts    // transfers that wait for the other side
	at      []int              // by rank: how many gathers it has begun
	gathers map[int]*gathering // by number
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

func (p *post) Done() bool {
	select {
	case <-p.ended:
	case <-p.room.first.failed:
	default:
		return false
	}
	return true
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
	flat(t, func(*torch.Tensor) {}) // refuses what is not dense
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left[peer] {
		r.first.set(&LostError{Rank: peer, Why: hasLeft})
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

// move copies the memory of one tensor to another.
func move(to, from *torch.Tensor, e edge) {
	flat(from, func(source *torch.Tensor) {
		flat(to, func(target *torch.Tensor) {
			n := source.Numel() * source.DType().Size()
			if n > target.Numel()*target.DType().Size() {
				panic(fmt.Sprintf("group: rank %d sends %v to rank %d under tag %d, which receives %v; want room for it", e.from, from, e.to, e.tag, to))
			}
			content := torch.Bytes(target)
			copy(content, torch.Bytes(source))
			if err := torch.SetBytes(target, content); err != nil {
				panic(err.Error())
			}
		})
	})
}

// gathering is one Gather of all members.
type gathering struct {
	what  []string
	bytes [][]byte
	begun []bool
	ended chan struct{}
}

func (m *local) gather(ctx context.Context, what string, mine []byte) ([][]byte, error) {
	g, err := m.enter(what, mine)
	if err != nil {
		return nil, err
	}
	select {
	case <-g.ended:
	case <-m.first.failed:
		return nil, m.first.get()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := differ(g.what); err != nil {
		return nil, err
	}
	all := make([][]byte, len(g.bytes))
	for i, b := range g.bytes {
		all[i] = append([]byte{}, b...)
	}
	return all, nil
}

// enter adds a member's part to its next gathering.
func (m *local) enter(what string, mine []byte) (*gathering, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.at[m.rank]
	m.at[m.rank]++
	g := m.gathers[n]
	if g == nil {
		size := len(m.at)
		g = &gathering{make([]string, size), make([][]byte, size), make([]bool, size), make(chan struct{})}
		m.gathers[n] = g
	}
	g.what[m.rank], g.bytes[m.rank], g.begun[m.rank] = what, append([]byte{}, mine...), true
	if !slices.Contains(g.begun, false) {
		delete(m.gathers, n)
		close(g.ended)
	}
	for rank, left := range m.left {
		if left && !g.begun[rank] {
			m.first.set(&LostError{Rank: rank, Why: hasLeft})
		}
	}
	return g, m.first.get()
}

func (m *local) fail(f Failure) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.first.set(&FailedError{f})
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
		lost = lost || !g.begun[m.rank]
	}
	if lost {
		m.first.set(&LostError{Rank: m.rank, Why: hasLeft})
	}
	return nil
}

const hasLeft = "it has left the group"

// differ is the error of members that are not at the same gather, or nil.
func differ(what []string) error {
	if len(slices.Compact(slices.Clone(what))) == 1 {
		return nil
	}
	var at []string
	for rank, w := range what {
		at = append(at, fmt.Sprintf("rank %d at %q", rank, w))
	}
	return fmt.Errorf("group: the members gather different things: %s; want the same calls in the same order on every rank", strings.Join(at, ", "))
}
