package group

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"penstock.example/internal/link"
	"penstock.example/torch"
)

// Group is one member of a group of processes that train one model together. Join or Local makes it, and
// Close frees it. It is safe for concurrent use.
type Group struct {
	rank, size int
	failure    *outcome
	gathers    *gathers
	member     member
	closing    sync.Once
}

// member is implemented for processes (control) and for goroutines (localMember).
type member interface {
	send(t *torch.Tensor, to, tag int) (link.Work, error)
	receive(t *torch.Tensor, from, tag int) (link.Work, error)
	fail(err error)
	close()
}

// Rank is the number of this member, from 0 to Size-1. It is 0 for a nil group.
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

// Send begins to send the memory of a dense tensor on a CPU to another member. A tensor is dense if its
// elements fill a range of memory, in any order of its dimensions. Tags are from 0 to 1<<30-1. Messages with
// the same tag arrive in the order of their sends. A send ends after the other member has begun to receive.
//
// Shapes, strides and types are not sent, and sizes are not checked: the callers agree on them beforehand. A
// message may be shorter than the memory that receives it. A longer message ends the receiving process. The
// tensor must not change until Wait has returned.
func (g *Group) Send(t *torch.Tensor, to, tag int) (link.Work, error) {
	return g.member.send(t, to, tag)
}

// Receive begins to fill the memory of a dense tensor on a CPU with a message of another member; see Send.
// Nobody reads or writes the tensor until Wait has returned.
func (g *Group) Receive(t *torch.Tensor, from, tag int) (link.Work, error) {
	return g.member.receive(t, from, tag)
}

// Fail tells all members that this member has failed, and ends all sends, receives and meetings
// that wait. Only the first failure of a group counts. e.Rank is ignored. Long texts are cut.
func (g *Group) Fail(e FailedError) {
	e.Rank, e.Action, e.Message = g.rank, cut(e.Action, maxText), cut(e.Message, maxText)
	g.member.fail(&e)
}

// Failed returns a channel that is closed when a member has failed or is lost.
func (g *Group) Failed() <-chan struct{} { return g.failure.failed }

// Err returns the first failure, a *FailedError or a *LostError, or nil.
func (g *Group) Err() error { return g.failure.get() }

// Close leaves the group, ends all waits and frees the resources. All members call it when they are
// done. It waits for the others, at most Config.Silence, so that they do not take this member for
// lost. It may be called again. The error is always nil.
func (g *Group) Close() error {
	g.closing.Do(g.member.close)
	return nil
}

// MemberError is the failure that another member has reported at a meeting. The group goes on.
type MemberError struct {
	Rank        int
	Message     string
	OutOfMemory bool // the member's error was torch.ErrOutOfMemory
}

func (e *MemberError) Error() string { return fmt.Sprintf("rank %d: %s", e.Rank, e.Message) }

// Is reports an error with OutOfMemory as torch.ErrOutOfMemory.
func (e *MemberError) Is(target error) bool { return e.OutOfMemory && target == torch.ErrOutOfMemory }

// contribution is what a member brings to a meeting: its value, and its failure so far.
type contribution[T any] struct {
	Body   T
	Failed *MemberError `json:",omitempty"`
}

// Meet waits for all members and returns the value of each, by rank. If any member gives a failure
// (failed), all get an error: their own failure, or else the *MemberError of the lowest rank that
// has failed. A nil group is this process alone. Values travel as JSON of at most 64 MiB.
//
// All members call Meet in the same order with the same what. Otherwise all get an error with the
// what of each rank. Meet blocks until all members have called it, the group has failed, or ctx is
// done. When ctx is done the group fails, as the others wait for this member.
func Meet[T any](ctx context.Context, g *Group, what string, mine T, failed error) ([]T, error) {
	if g == nil {
		return []T{mine}, failed
	}
	own := contribution[T]{Body: mine}
	if failed != nil {
		own.Failed = &MemberError{g.rank, cut(failed.Error(), maxText),
			errors.Is(failed, torch.ErrOutOfMemory)}
	}
	text, err := json.Marshal(own)
	var all []part
	if err == nil {
		all, err = g.gather(ctx, part{cut(what, maxWhat), text})
	}
	switch {
	case err != nil && errors.Is(failed, err): // both are the failure of the group
		return nil, failed
	case err != nil:
		return nil, errors.Join(failed, err)
	}
	out, first := make([]T, len(all)), failed
	for rank, p := range all {
		var m contribution[T]
		if err := json.Unmarshal(p.Data, &m); err != nil {
			return nil, fmt.Errorf("group: meeting for %s: the value of rank %d: %w", what, rank, err)
		}
		if m.Failed != nil && first == nil {
			first = m.Failed
		}
		out[rank] = m.Body
	}
	return out, first
}

// gather gives all members the parts of all, by rank.
func (g *Group) gather(ctx context.Context, mine part) ([]part, error) {
	at := "meeting for " + mine.What
	if n := len(mine.Data); n > maxPart {
		return nil, fmt.Errorf("group: %s: %d bytes; want at most %d", at, n, maxPart)
	} else if err := g.failure.get(); err != nil {
		return nil, err
	}
	all, err := g.gathers.gather(ctx, mine)
	if err != nil && ctx.Err() != nil && g.failure.get() == nil {
		err = fmt.Errorf("group: %s: %w", at, ctx.Err())
		g.Fail(FailedError{Stage: -1, MicroBatch: -1, Action: at, Message: ctx.Err().Error()})
	}
	return all, err
}

// FromFirst calls f on rank 0 and gives its result to all members. It is a Meet.
func FromFirst[T any](ctx context.Context, g *Group, what string, f func() (T, error)) (out T, err error) {
	if g.Rank() == 0 {
		out, err = f()
	}
	all, err := Meet(ctx, g, what, out, err)
	if err != nil || g.Rank() == 0 { // rank 0's result need not go through JSON
		return out, err
	}
	return all[0], nil
}
