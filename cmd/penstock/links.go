package main

import (
	"context"
	"fmt"
	"time"

	"penstock.example/group"
	"penstock.example/internal/link"
	"penstock.example/plan"
	"penstock.example/torch"
)

// Links are timed between each process and the next, one pair after the other. The latency is half of the
// shortest of several round trips of few bytes; the bandwidth is of the fastest of several transfers of many.
const (
	roundTrips    = 20
	transfers     = 4
	transferBytes = 2 << 20
)

// measureLinks returns the slowest link of a group. All members call it.
func measureLinks(ctx context.Context, g *group.Group) (slowest plan.Link, err error) {
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	for first := range g.Size() - 1 {
		var mine plan.Link
		var failed error
		if err := torch.Try(func() {
			switch g.Rank() {
			case first:
				mine, failed = timeLink(c, g, first+1, true)
			case first + 1:
				_, failed = timeLink(c, g, first, false)
			}
		}); err != nil {
			failed = err
		}
		all, err := group.Meet(ctx, g, fmt.Sprintf("the link from rank %d to rank %d", first, first+1), mine,
			failed)
		if err != nil {
			return slowest, err
		}
		slowest = slower(slowest, all[first])
	}
	return slowest, nil
}

// slower returns the greater latency and the lower bandwidth of two links. A bandwidth of 0 is unlimited.
func slower(a, b plan.Link) plan.Link {
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

// linkOf computes a link from the times of a small and of a large transfer.
func linkOf(few, many time.Duration, bytes int) plan.Link {
	return plan.Link{Latency: few, Bandwidth: float64(bytes) / max(many-few, time.Microsecond).Seconds()}
}

// timeLink times the link to a member, which answers each transfer.
func timeLink(c *torch.Ctx, g *group.Group, peer int, asks bool) (l plan.Link, err error) {
	few, many := c.Zeros(torch.Float32, 1), c.Zeros(torch.Float32, transferBytes/4)
	send := func(t *torch.Tensor) error { return wait(g.Send(t, peer, 0)) }
	receive := func(t *torch.Tensor) error { return wait(g.Receive(t, peer, 0)) }
	trips := func(n int, t *torch.Tensor) (time.Duration, error) {
		return shortest(n, func() (time.Duration, error) {
			began := time.Now()
			first, second := send, receive
			if !asks {
				first, second = receive, send
			}
			if err := first(t); err != nil {
				return 0, err
			}
			err := second(few)
			return max(time.Since(began), time.Nanosecond), err
		})
	}
	short, err := trips(roundTrips, few)
	if err != nil {
		return l, err
	}
	long, err := trips(transfers, many)
	l = linkOf(short, long, transferBytes)
	l.Latency /= 2 // of a round trip
	return l, err
}

func wait(w link.Work, err error) error {
	if err != nil {
		return err
	}
	return w.Wait()
}
