package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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

// timeTrips makes a link of the times of trips with few and with many bytes.
func timeTrips(c *torch.Ctx, bytes int, trip func(*torch.Tensor) (time.Duration, error)) (plan.Link, error) {
	var least [2]time.Duration
	for i, numbers := range []int{1, bytes / 4} {
		t := c.Zeros(torch.Float32, int64(numbers))
		c.Synchronize()
		for k := range trips {
			took, err := trip(t)
			if err != nil {
				return plan.Link{}, err
			}
			if k == 0 || took < least[i] {
				least[i] = max(took, time.Nanosecond)
			}
		}
	}
	return plan.Link{Latency: least[0],
		Bandwidth: float64(bytes) / max(least[1]-least[0], time.Microsecond).Seconds()}, nil
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
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	for first := range g.Size() - 1 {
		var mine plan.Link
		var failed error
		err := torch.Try(func() {
			if own := g.Rank() - first; own == 0 || own == 1 {
				mine, failed = timeLink(c, g, first+1-own, own == 0)
			}
		})
		if err == nil {
			err = failed
		}
		all, err := group.Meet(ctx, g, fmt.Sprintf("the link from rank %d to the next", first), mine, err)
		if err != nil {
			return slowest, err
		}
		slowest = slower(slowest, all[first])
	}
	return slowest, nil
}

// timeLink times the link to a member, which answers each transfer with few bytes. The latency is half of
// the shortest round trip.
func timeLink(c *torch.Ctx, g *group.Group, peer int, asks bool) (plan.Link, error) {
	wait := func(w link.Work, err error) error {
		if err != nil {
			return err
		}
		return w.Wait()
	}
	answer := c.Zeros(torch.Float32, 1)
	l, err := timeTrips(c, 2<<20, func(t *torch.Tensor) (time.Duration, error) {
		began := time.Now()
		if !asks {
			if err := wait(g.Receive(t, peer, 0)); err != nil {
				return 0, err
			}
			return time.Since(began), wait(g.Send(answer, peer, 0))
		}
		if err := wait(g.Send(t, peer, 0)); err != nil {
			return 0, err
		}
		err := wait(g.Receive(answer, peer, 0))
		return time.Since(began), err
	})
	l.Latency /= 2
	return l, err
}

// measureCopies is what copies between each two devices of this process take. The slowest counts for all.
func measureCopies(devices []torch.Device) (slowest plan.Link, err error) {
	err = torch.Try(func() {
		for i, to := range devices {
			for _, from := range devices[:i] {
				slowest = slower(slowest, timeCopies(from, to))
			}
		}
	})
	return slowest, err
}

// timeCopies times copies from one device to another.
func timeCopies(from, to torch.Device) plan.Link {
	source, target := torch.NewCtx(torch.Options{Device: from}), torch.NewCtx(torch.Options{Device: to})
	defer source.Close()
	defer target.Close()
	l, _ := timeTrips(source, 64<<20, func(t *torch.Tensor) (time.Duration, error) {
		start := engine.Now(target)
		defer start.Free()
		target.CopyHere(t)
		end := engine.Now(target)
		defer end.Free()
		target.Synchronize()
		target.Close()
		return end.Since(start), nil
	})
	return l
}

// deviceNames is devices as --devices takes them.
func deviceNames(devices []torch.Device) string {
	var list []string
	for _, d := range devices {
		list = append(list, d.String())
	}
	return strings.Join(list, ",")
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
			return nil, badUsage("--devices %s: %s", deviceNames(devices), message(problem))
		}
		list = append(list, train.PlanDevice{Device: d, Hardware: h})
	}
	return list, nil
}
