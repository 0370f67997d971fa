package group

import (
	"context"
	"fmt"
	"sync"

	"penstock.example/internal/link"
	"penstock.example/torch"
)

// MaxTag bounds the tags of sends and receives: 0 <= tag < MaxTag.
const MaxTag = 1 << 30

// Group is this process's membership in a group of processes that train one model together. Join or Local
// makes it, and Close frees it. It is safe for concurrent use.
type Group struct {
	rank, size int
	first      *outcome
	member     member
	sent       sync.Once
	closing    sync.Once
	closed     error
}

// member is the part in which the members of Join and of Local differ. Arguments are checked.
type member interface {
	gather(ctx context.Context, what string, mine []byte) ([][]byte, error)
	send(t *torch.Tensor, to, tag int) (link.Work, error)
	receive(t *torch.Tensor, from, tag int) (link.Work, error)
	fail(f Failure)
	close() error
}

// Rank is the number of this member: 0 <= Rank < Size. It is 0 for a nil group.
func (g *Group) Rank() int {
	if g == nil {
		return 0
	}
	return g.rank
}

// Size is the number of members, 1 for a nil group.
func (g *Group) Size() int {
	if g == nil {
		return 1
	}
	return g.size
}

// Gather gives every member the bytes of all, in rank order. The caller owns them. All members call
// it in the same order with the same what, at most 256 bytes long. Otherwise all get an error with the what
// of each rank. mine has at most 64 MiB.
//
// It blocks until all members have called it, the group has failed, or ctx is done. As the others wait for
// this member, the group fails when ctx is done.
func (g *Group) Gather(ctx context.Context, what string, mine []byte) ([][]byte, error) {
	if len(what) > maxWhat {
		return nil, fmt.Errorf("group: Gather: what has %d bytes; want at most %d", len(what), maxWhat)
	}
	if len(mine) > maxGather {
		return nil, fmt.Errorf("group: Gather of %s: rank %d gives %d bytes; want at most %d",
			what, g.rank, len(mine), maxGather)
	}
	if err := g.first.get(); err != nil {
		return nil, err
	}
	all, err := g.member.gather(ctx, what, mine)
	if err != nil && ctx.Err() != nil && g.first.get() == nil {
		err = fmt.Errorf("group: Gather of %s: %w", what, ctx.Err())
		g.Fail(Failure{Stage: -1, MicroBatch: -1, Action: "gather of " + what, Message: ctx.Err().Error()})
	}
	return all, err
}

// Send begins to send the memory of a dense tensor to a member. A tensor is dense if its elements fill a
// range of memory, in any order of its dimensions. A receive gets the sends to it with the same tag, in their
// order. A send ends after the other member has begun to receive.
//
// Shapes, strides and types are not sent, and sizes are not checked: the callers agree on them beforehand. A
// message may be shorter than the memory that receives it. A longer one ends the receiving process. The
// tensor must stay as it is until Wait has returned.
func (g *Group) Send(t *torch.Tensor, to, tag int) (link.Work, error) {
	if err := g.checkTransfer("Send", t, to, tag); err != nil {
		return nil, err
	}
	return g.member.send(t, to, tag)
}

// Receive begins to fill the memory of a dense tensor with a message of a member; see Send. Nobody
// reads or writes the tensor until Wait has returned.
func (g *Group) Receive(t *torch.Tensor, from, tag int) (link.Work, error) {
	if err := g.checkTransfer("Receive", t, from, tag); err != nil {
		return nil, err
	}
	return g.member.receive(t, from, tag)
}

func (g *Group) checkTransfer(call string, t *torch.Tensor, peer, tag int) error {
	if peer < 0 || peer >= g.size || peer == g.rank {
		return fmt.Errorf("group: %s: rank %d of %d has rank %d as the other side; want another member",
			call, g.rank, g.size, peer)
	}
	if tag < 0 || tag >= MaxTag {
		return fmt.Errorf("group: %s: the tag is %d; want 0 to %d", call, tag, MaxTag-1)
	}
	if t.Kind() != torch.KindCPU {
		return fmt.Errorf("group: %s: %v is on another kind of device; want a tensor on a CPU", call, t)
	}
	return g.first.get()
}

// Fail tells all members that this one has failed, and ends all waits in sends, receives and gathers, here
// and there. Only the first failure of a group counts. Rank is set to this member's. Long texts are cut.
func (g *Group) Fail(f Failure) {
	f = f.bounded()
	f.Rank = g.rank
	g.sent.Do(func() { g.member.fail(f) })
}

// Failed returns a channel that is closed when a member has failed or is lost.
func (g *Group) Failed() <-chan struct{} { return g.first.failed }

// Err returns the first failure, a *FailedError or a *LostError, or nil.
func (g *Group) Err() error { return g.first.get() }

// Close leaves the group and frees its resources. It ends all waits. All members call it when they are done.
// It waits some seconds for the others, so that nobody takes the end for a loss. It may be called again and
// returns the same.
func (g *Group) Close() error {
	g.closing.Do(func() { g.closed = g.member.close() })
	return g.closed
}
