package train

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"penstock.example/group"
	"penstock.example/internal/engine"
	"penstock.example/internal/link"
	"penstock.example/plan"
	"penstock.example/torch"
)

// timeLink times ten transfers of 4 bytes and ten of many bytes, and makes a link of the shortest times.
// The tensor of a transfer is on the device.
func timeLink(on torch.Device, bytes int, transfer func(*torch.Tensor) (time.Duration, error)) (l plan.Link,
	err error) {
	c := torch.NewCtx(torch.Options{Device: on})
	defer c.Close()
	failed := torch.Try(func() {
		var shortest [2]time.Duration
		for i, numbers := range []int{1, bytes / 4} {
			t := c.Zeros(torch.Float32, int64(numbers))
			c.Synchronize()
			shortest[i] = math.MaxInt64
			for range 10 {
				var took time.Duration
				if took, err = transfer(t); err != nil {
					return
				}
				shortest[i] = min(shortest[i], max(took, time.Nanosecond))
			}
		}
		l = plan.Link{Latency: shortest[0],
			Bandwidth: float64(bytes) / max(shortest[1]-shortest[0], time.Microsecond).Seconds()}
	})
	return l, cmp.Or(failed, err)
}

// worseLink returns the greater latency and the lower bandwidth of two links. A bandwidth of 0 is unlimited.
func worseLink(a, b plan.Link) plan.Link {
	if a.Latency = max(a.Latency, b.Latency); a.Bandwidth == 0 || b.Bandwidth < a.Bandwidth {
		a.Bandwidth = b.Bandwidth
	}
	return a
}

// MeasureLinks returns the slowest link between a process and the next. All members of the group call it.
func MeasureLinks(ctx context.Context, g *group.Group) (slowest plan.Link, err error) {
	for first := range g.Size() - 1 {
		var mine plan.Link
		if own := g.Rank() - first; own == 0 || own == 1 {
			mine, err = timeRoundTrips(g, first+1-own, own == 0)
		}
		all, err := group.Meet(ctx, g, fmt.Sprintf("the link from rank %d to the next", first), mine, err)
		if err != nil {
			return slowest, err
		}
		slowest = worseLink(slowest, all[first])
	}
	return slowest, nil
}

// timeRoundTrips times half of each round trip to a member and back.
func timeRoundTrips(g *group.Group, peer int, asks bool) (plan.Link, error) {
	turns := []func(*torch.Tensor, int, int) (link.Work, error){g.Send, g.Receive}
	if !asks {
		slices.Reverse(turns)
	}
	return timeLink(torch.CPU(0), 2<<20, func(t *torch.Tensor) (time.Duration, error) {
		began := time.Now()
		for _, turn := range turns {
			w, err := turn(t, peer, 0)
			if err == nil {
				err = w.Wait()
			}
			if err != nil {
				return 0, err
			}
		}
		return time.Since(began) / 2, nil
	})
}

// measureCopies returns the slowest link between two devices of this process.
func measureCopies(devices []PlanDevice) (slowest plan.Link, err error) {
	for i, to := range devices {
		for _, from := range devices[:i] {
			l, err := timeLink(from.Device, 64<<20, func(t *torch.Tensor) (time.Duration, error) {
				target := torch.NewCtx(torch.Options{Device: to.Device})
				defer target.Close()
				start := engine.Now(target)
				defer start.Free()
				target.CopyHere(t)
				end := engine.Now(target)
				defer end.Free()
				target.Synchronize()
				return end.Since(start), nil
			})
			if err != nil {
				return slowest, err
			}
			slowest = worseLink(slowest, l)
		}
	}
	return slowest, nil
}
