package group

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"penstock.example/torch"
)

// MemberError is the failure of another member at a meeting. The group itself goes on.
type MemberError struct {
	Rank        int
	Message     string
	OutOfMemory bool // the member's error was torch.ErrOutOfMemory, and so is this one
}

func (e *MemberError) Error() string { return fmt.Sprintf("rank %d: %s", e.Rank, e.Message) }

// Is reports that an error for lack of memory is torch.ErrOutOfMemory.
func (e *MemberError) Is(target error) bool { return e.OutOfMemory && target == torch.ErrOutOfMemory }

// meeting is a member's part in a meeting: a value, and an error from before.
type meeting[T any] struct {
	Body        T
	Failed      bool   `json:",omitempty"`
	Error       string `json:",omitempty"`
	OutOfMemory bool   `json:",omitempty"`
}

// Meet waits for all members, and returns the values of all, by rank. If failed is not nil on any member,
// all get an error: their own, or the *MemberError of the lowest rank that has one. A nil group is this
// process alone. encoding/json must be able to write and read back a T.
func Meet[T any](ctx context.Context, g *Group, what string, mine T, failed error) ([]T, error) {
	if g == nil {
		return []T{mine}, failed
	}
	own := meeting[T]{Body: mine}
	if failed != nil {
		own.Failed, own.Error = true, cut(failed.Error(), maxText)
		own.OutOfMemory = errors.Is(failed, torch.ErrOutOfMemory)
	}
	text, err := json.Marshal(own)
	if err != nil {
		return nil, errors.Join(failed, fmt.Errorf("group: meeting for %s: %w", what, err))
	}
	all, err := g.Gather(ctx, what, text)
	if err != nil && errors.Is(failed, err) { // both are the failure of the group
		return nil, failed
	}
	if err != nil {
		return nil, errors.Join(failed, err)
	}
	out, first := make([]T, len(all)), failed
	for rank, text := range all {
		var m meeting[T]
		if err := json.Unmarshal(text, &m); err != nil {
			return nil, fmt.Errorf("group: what rank %d says of %s: %w", rank, what, err)
		}
		if m.Failed && first == nil {
			first = &MemberError{rank, m.Error, m.OutOfMemory}
		}
		out[rank] = m.Body
	}
	return out, first
}

// FromFirst calls f on rank 0 and gives its result to all. A nil group is this process alone. encoding/json
// must be able to write and read back a T.
func FromFirst[T any](ctx context.Context, g *Group, what string, f func() (T, error)) (out T, err error) {
	if g == nil || g.Rank() == 0 {
		out, err = f()
	}
	all, err := Meet(ctx, g, what, out, err)
	if err != nil || g == nil || g.Rank() == 0 { // rank 0's result need not go through JSON
		return out, err
	}
	return all[0], nil
}

// Agree waits for all members. If failed is not nil on any member, all get an error: their own, or a
// *MemberError.
func Agree(ctx context.Context, g *Group, what string, failed error) error {
	_, err := Meet(ctx, g, what, 0, failed)
	return err
}
