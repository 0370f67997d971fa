package main

import (
	"context"
	"fmt"
	"time"

	"penstock.example/group"
	"penstock.example/internal/link"
	"penstock.example/planner/search"
	"penstock.example/torch"
)

// What a value takes from one process to another is measured before a run plans itself: between each process
// and the next, as a pipeline has its stages, one pair after the other. The slowest of them counts for all.

// The latency is half of the shortest of several round trips of few bytes; the bandwidth that of the fastest of
// several transfers of many.
const (
	roundTrips    = 20
	transfers     = 4
	transferBytes = 2 << 20
)

// measureLinks measures the links of a group. All members call it, and all get the same.
func measureLinks(ctx context.Context, g *group.Group) (slowest search.Link, err error) {
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	for first := range g.Size() - 1 {
		var mine search.Link
		var failed error
		if err := torch.Try(func() {
			switch g.Rank() {
			case first:
				mine, failed = timeLink(c, g, first+1)
			case first + 1:
				failed = answerLink(c, g, first)
			}
		}); err != nil {
			failed = err
		}
		all, err := group.Meet(ctx, g, fmt.Sprintf("the link from rank %d to rank %d", first, first+1), mine, failed)
		if err != nil {
			return slowest, err
		}
		slowest = slower(slowest, all[first])
	}
	return slowest, nil
}

// slower is the greater latency and the lower bandwidth of two links. That of the zero value is no bound.
func slower(a, b search.Link) search.Link {
	if a.Latency = max(a.Latency, b.Latency); a.Bandwidth == 0 || b.Bandwidth < a.Bandwidth {
		a.Bandwidth = b.Bandwidth
	}
	return a
}

// shortest is the shortest of several trips.
func shortest(n int, trip func() (time.Duration, error)) (least time.Duration, err error) {
	for k := range n {
		took, err := trip()
		if err != nil {
			return 0, err
		}
		if k == 0 || took < least {
			least = took
		}
	}
	return least, nil
}

// linkOf is a link of which the transfer of few bytes takes one time and that of many another.
func linkOf(few, many time.Duration, bytes int) search.Link {
	return search.Link{Latency: few, Bandwidth: float64(bytes) / max(many-few, time.Microsecond).Seconds()}
}

// timeLink times the link to a member, which calls answerLink.
func timeLink(c *torch.Ctx, g *group.Group, peer int) (l search.Link, err error) {
	few, many := c.Zeros(torch.Float32, 1), c.Zeros(torch.Float32, transferBytes/4)
	trip := func(t *torch.Tensor) (time.Duration, error) {
		began := time.Now()
		if err := wait(g.Send(t, peer, 0)); err != nil {
			return 0, err
		}
		err := wait(g.Receive(few, peer, 0))
		return max(time.Since(began), time.Nanosecond), err
	}
	short, err := shortest(roundTrips, func() (time.Duration, error) { return trip(few) })
	if err != nil {
		return l, err
	}
	long, err := shortest(transfers, func() (time.Duration, error) { return trip(many) })
	l = linkOf(short, long, transferBytes)
	l.Latency /= 2 // of a round trip
	return l, err
}

// answerLink is the other side of timeLink.
func answerLink(c *torch.Ctx, g *group.Group, peer int) error {
	few, many := c.Zeros(torch.Float32, 1), c.Zeros(torch.Float32, transferBytes/4)
	for k := range roundTrips + transfers {
		t := few
		if k >= roundTrips {
			t = many
		}
		if err := wait(g.Receive(t, peer, 0)); err != nil {
			return err
		}
		if err := wait(g.Send(few, peer, 0)); err != nil {
			return err
		}
	}
	return nil
}

// wait waits for what has begun, if it has.
func wait(w link.Work, err error) error {
	if err != nil {
		return err
	}
	return w.Wait()
}

// linkedMachine is so many devices of so many threads each, with links between them.
func linkedMachine(name string, devices, threads int, links ...search.Link) search.Machine {
	m := search.Machine{Links: links}
	for i := range devices {
		m.Devices = append(m.Devices, search.Device{Name: fmt.Sprint(name, i), Threads: threads})
	}
	return m
}
