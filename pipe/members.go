package pipe

import (
	"context"
	"errors"

	"penstock.example/group"
	"penstock.example/internal/link"
	"penstock.example/schedule"
)

// The stages of a pipe may be in several processes, the members of a group. The program moves
// parcels between them. They meet to exchange the loss, the norms of gradients, and the end of each
// phase of an update. A failure within a step fails the group, since messages may be in flight.

// meet is group.Meet of the pipe's processes. It also exchanges the memory of their devices.
func meet[T any](ctx context.Context, p *Pipe, what string, mine T, failed error) ([]T, error) {
	if p.cfg.Group == nil {
		return []T{mine}, failed
	}
	own := struct {
		Body    T
		Devices map[int]deviceBytes // by worker
	}{mine, map[int]deviceBytes{}}
	for _, w := range p.mine {
		own.Devices[w] = deviceBytes{p.memory.of(w).Safe, p.workers[w].device.Memory().Peak}
	}
	all, err := group.Meet(ctx, p.cfg.Group, "pipe: "+what, own, failed)
	if err != nil {
		return nil, err
	}
	out, most := make([]T, len(all)), map[int]deviceBytes{} // of all replicas
	for rank, s := range all {
		for w, d := range s.Devices {
			most[w] = deviceBytes{max(most[w].Safe, d.Safe), max(most[w].Peak, d.Peak)}
		}
		out[rank] = s.Body
	}
	for w, d := range most {
		p.memory.set(w, d.Safe, d.Peak)
	}
	return out, nil
}

// failGroup fails the group, in which other processes may wait for this one. It returns the first
// failure of the group. Without an error or a group it does nothing and returns err.
func (p *Pipe) failGroup(err error) error {
	g := p.cfg.Group
	if err == nil || g == nil {
		return err
	}
	f := group.FailedError{Rank: g.Rank(), Stage: -1, MicroBatch: -1, Message: err.Error()}
	var at *Error
	if errors.As(err, &at) {
		f.Stage, f.MicroBatch, f.Action, f.Message = at.Stage, at.MicroBatch, at.Direction.String(), at.text()
	}
	g.Fail(f)
	if first := g.Err(); first != nil {
		var failed *group.FailedError
		if !errors.As(first, &failed) || failed.Rank != g.Rank() {
			return first
		}
	}
	return err
}

// linkOf is the link between the two stages of a send or receive.
func (r *run) linkOf(send schedule.Action) link.Link {
	if r.p.stages[send.Stage].Here && r.p.stages[send.Peer].Here {
		return r.localLink
	}
	return r.remoteLink
}
