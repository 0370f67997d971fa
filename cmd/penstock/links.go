package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"penstock.example/group"
	"penstock.example/internal/engine"
	"penstock.example/internal/link"
	"penstock.example/plan"
	"penstock.example/torch"
	"penstock.example/train"
)

// trips is how many transfers of few bytes and of many are timed on a link. The shortest count.
const trips = 10

// timeTrips makes a link of the times of trips with few and with many bytes that are on a device.
func timeTrips(on torch.Device, bytes int, trip func(*torch.Tensor) (time.Duration, error)) (l plan.Link,
	err error) {
	c := torch.NewCtx(torch.Options{Device: on})
	defer c.Close()
	failed := torch.Try(func() {
		var least [2]time.Duration
		for i, numbers := range []int{1, bytes / 4} {
			t := c.Zeros(torch.Float32, int64(numbers))
			c.Synchronize()
			for k := range trips {
				var took time.Duration
				if took, err = trip(t); err != nil {
					return
				}
				if k == 0 || took < least[i] {
					least[i] = max(took, time.Nanosecond)
				}
			}
		}
		l = plan.Link{Latency: least[0],
			Bandwidth: float64(bytes) / max(least[1]-least[0], time.Microsecond).Seconds()}
	})
	return l, cmp.Or(failed, err)
}

// slower returns the greater latency and the lower bandwidth of two links. A bandwidth of 0 is unlimited.
func slower(a, b plan.Link) plan.Link {
	if a.Latency = max(a.Latency, b.Latency); a.Bandwidth == 0 || b.Bandwidth < a.Bandwidth {
		a.Bandwidth = b.Bandwidth
	}
	return a
}

// measureLinks returns the slowest link between a process and the next. All members of the group call it.
func measureLinks(ctx context.Context, g *group.Group) (slowest plan.Link, err error) {
	for first := range g.Size() - 1 {
		var mine plan.Link
		if own := g.Rank() - first; own == 0 || own == 1 {
			mine, err = timeLink(g, first+1-own, own == 0)
		}
		all, err := group.Meet(ctx, g, fmt.Sprintf("the link from rank %d to the next", first), mine, err)
		if err != nil {
			return slowest, err
		}
		slowest = slower(slowest, all[first])
	}
	return slowest, nil
}

// timeLink times half of each round trip to a member and back.
func timeLink(g *group.Group, peer int, asks bool) (plan.Link, error) {
	turns := []func(*torch.Tensor, int, int) (link.Work, error){g.Send, g.Receive}
	if !asks {
		slices.Reverse(turns)
	}
	return timeTrips(torch.CPU(0), 2<<20, func(t *torch.Tensor) (time.Duration, error) {
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

// measureCopies is what copies between each two devices of this process take. The slowest counts for all.
func measureCopies(devices []torch.Device) (slowest plan.Link, err error) {
	for i, to := range devices {
		for _, from := range devices[:i] {
			l, err := timeTrips(from, 64<<20, func(t *torch.Tensor) (time.Duration, error) {
				target := torch.NewCtx(torch.Options{Device: to})
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
			slowest = slower(slowest, l)
		}
	}
	return slowest, nil
}

// hardware reads the model and the memory of a device. Tests replace it.
var hardware = torch.Device.Hardware

// readDevices reads the model and the memory of devices. It refuses devices that cannot be planned together,
// or cannot be used here.
func readDevices(devices []torch.Device) (list []train.PlanDevice, err error) {
	for i, d := range devices {
		h, problem := hardware(d)
		switch {
		case slices.Contains(devices[:i], d):
			problem = fmt.Errorf("%v is there twice; want each device once", d)
		case d.Kind != devices[0].Kind:
			problem = errors.New("a CPU and a GPU are not planned together; want devices of one of the two")
		case d.Usable() != nil:
			problem = d.Usable()
		}
		if problem != nil {
			return nil, badUsage("--devices %s: %s", joined(devices), message(problem))
		}
		list = append(list, train.PlanDevice{Device: d, Hardware: h})
	}
	return list, nil
}
