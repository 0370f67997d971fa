package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"penstock.example/plan"
	"penstock.example/torch"
	"penstock.example/train"
)

// checkNamed refuses devices that cannot be planned together, or cannot be used here.
func checkNamed(devices []torch.Device) error {
	refuse := func(format string, args ...any) error {
		return badUsage("--devices %s: %s", deviceNames(devices), fmt.Sprintf(format, args...))
	}
	for i, d := range devices {
		switch {
		case slices.Contains(devices[:i], d):
			return refuse("%v is there twice; want each device once: schedules of several stages on each, "+
				"with --virtual, need no more", d)
		case d.Kind != devices[0].Kind:
			return refuse("a CPU and a GPU are not planned together, as their times differ layer by layer, " +
				"by no one factor; want devices of one of the two")
		}
	}
	for _, d := range devices {
		if err := d.Usable(); err != nil {
			return refuse("%v; want cpu:0, cpu:1, ...", err)
		}
	}
	return nil
}

// hardware reads the model and the memory of a device. Tests replace it.
var hardware = torch.Device.Hardware

// readDevices reads the model and the memory of devices.
func readDevices(devices []torch.Device) (list []train.PlanDevice, err error) {
	for _, d := range devices {
		h, err := hardware(d)
		if err != nil {
			return nil, badUsage("--devices %s: %s", deviceNames(devices), message(err))
		}
		list = append(list, train.PlanDevice{Device: d, Hardware: h})
	}
	return list, nil
}

// describeDevices lists devices with their models.
func describeDevices(list []train.PlanDevice) string {
	var words []string
	for _, d := range list {
		word := d.String()
		if d.Hardware.Model != "" {
			word += " (" + d.Hardware.Model + ")"
		}
		words = append(words, word)
	}
	return strings.Join(words, ",")
}

// copyBytes is the size of a copy between GPUs that is timed for the bandwidth: it takes some milliseconds.
const copyBytes = 64 << 20

// measureCopies is what copies between each two devices of this process take. The slowest of them counts
// for all.
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
	copied := func(n int, t *torch.Tensor) time.Duration {
		took, _ := shortest(n, func() (time.Duration, error) {
			start := target.Moment()
			defer start.Free()
			target.CopyHere(t)
			end := target.Moment()
			defer end.Free()
			target.Synchronize()
			target.Close()
			return max(end.Since(start), time.Nanosecond), nil
		})
		return took
	}
	few, many := source.Zeros(torch.Float32, 1), source.Zeros(torch.Float32, copyBytes/4)
	source.Synchronize()
	short, long := copied(roundTrips, few), copied(transfers, many)
	return linkOf(short, long, copyBytes)
}
