package plan

import (
	"cmp"
	"context"
	"slices"
)

// exactly finds the best plans of a small stage whose chains have steps: of every chain all plans that no other beats in the bytes before, between and after and in time, and of those the best
// combination. It gives up, with nil, where that takes too long; for so few plans it is quick.
func (f *flight) exactly(ctx context.Context) []*path {
	if f.first.steps == nil || f.later.steps == nil {
		return nil
	}
	later := f.front(ctx, 1)
	if later == nil {
		return nil
	}
	first := f.front(ctx, 0)
	if first == nil {
		return nil
	}
	labels := []*label{{total: f.limit}}
	for b := f.k - 1; b >= 0; b-- {
		front := later
		if b == 0 {
			front = first
		}
		var next []*label
		for _, l := range labels {
			for _, p := range front {
				if grown := l.with(p, f.limit, f.there(b)); grown != nil {
					next = append(next, grown)
				}
			}
		}
		if labels = undominatedLabels(next); len(labels) == 0 || len(labels) > mostLabels || ctx.Err() != nil {
			return nil
		}
	}
	best := slices.MinFunc(labels, func(a, b *label) int {
		return cmp.Or(cmp.Compare(a.extra, b.extra), cmp.Compare(a.held, b.held))
	})
	var paths []*path
	for l := best; l.path != nil; l = l.after {
		paths = append(paths, l.path)
	}
	return paths
}

const (
	mostWork   = 1 << 22 // of looking for the plans of one chain, in breakpoints times pairs of layers, about
	mostRooms  = 20000   // looked at for them
	mostLabels = 2000    // of one micro-batch
)

// answer is the fastest plan in a room.
type answer struct {
	room
	path *path
}

// front is the plans of micro-batch b that no other beats; nil if there are too many. It asks for the fastest in some room, and then in the three rooms that are one byte smaller than it
// needs: whatever is not beaten is the fastest in a room that none of the plans found before fits in.
func (f *flight) front(ctx context.Context, b int) []*path {
	rooms := []room{{forward: f.limit, held: f.limit, backward: f.limit - f.there(b)}}
	seen := map[room]bool{}
	var answers []answer
	var front []*path
	s := f.side(b)
	work := 0
	for len(rooms) > 0 {
		r := rooms[len(rooms)-1]
		rooms = rooms[:len(rooms)-1]
		if seen[r] {
			continue
		}
		seen[r] = true
		known := slices.IndexFunc(answers, func(a answer) bool { return a.path.fits(r) && a.contains(r) })
		if known < 0 {
			p := s.path(r)
			if p == nil {
				continue
			}
			known = len(answers)
			answers = append(answers, answer{r, p})
			front = append(front, p)
			work += s.t.n * s.t.n * (20 + len(s.steps.whole()))
		}
		if work > mostWork || len(seen) > mostRooms || ctx.Err() != nil {
			return nil
		}
		p := answers[known].path
		rooms = append(rooms, room{p.early - 1, r.held, r.backward}, room{r.forward, p.held - 1, r.backward}, room{r.forward, r.held, p.late - 1})
	}
	return front
}

// contains says that what fits in inner fits in r.
func (r room) contains(inner room) bool {
	return inner.forward <= r.forward && inner.held <= r.held && inner.backward <= r.backward
}

// fits says that the plan, which has been written for a stage, has room in r.
func (p *path) fits(r room) bool {
	return p.early <= r.forward && p.held <= r.held && p.late <= r.backward
}

// label is plans for a micro-batch and all after it.
type label struct {
	path  *path
	after *label // of the micro-batch after
	held  int64
	// total is the most that all micro-batches, those before too, may hold so that the forwards fit.
	total int64
	extra float64
}

// with is l with a plan for the micro-batch before; nil if that does not fit.
func (l *label) with(p *path, limit, there int64) *label {
	if there+l.held+p.late > limit {
		return nil
	}
	held := l.held + p.held
	// What those before hold is total - held.
	total := min(l.total, limit-p.early+held)
	if held > total {
		return nil
	}
	return &label{path: p, after: l, held: held, total: total, extra: l.extra + p.extra}
}

// undominatedLabels leaves out what is beaten by another: one that holds no more, lets those before hold no less, and takes no longer.
func undominatedLabels(labels []*label) []*label {
	slices.SortFunc(labels, func(a, b *label) int {
		return cmp.Or(cmp.Compare(a.held, b.held), cmp.Compare(b.total, a.total), cmp.Compare(a.extra, b.extra))
	})
	var kept []*label
	var stairs []*label // of those kept the ones that hold as little as any: total descends, and extra with it
	for _, l := range labels {
		k, _ := slices.BinarySearchFunc(stairs, l, func(s, l *label) int { return cmp.Compare(l.total, s.total) })
		if k < len(stairs) && stairs[k].total == l.total {
			k++
		}
		if k > 0 && stairs[k-1].extra <= l.extra {
			continue
		}
		beaten := k
		for beaten < len(stairs) && stairs[beaten].extra >= l.extra {
			beaten++
		}
		if k > 0 && stairs[k-1].total == l.total {
			k--
		}
		stairs = slices.Replace(stairs, k, beaten, l)
		if kept = append(kept, l); len(kept) > mostLabels {
			break
		}
	}
	return kept
}
