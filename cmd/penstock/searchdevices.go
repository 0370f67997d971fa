package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"penstock.example/planner/search"
	"penstock.example/remat"
	"penstock.example/torch"
)

// Devices of this machine that a plan is for, by name. Those of one kind are taken as equal: all CPU devices, and
// GPUs of one model. Layers are measured on the first device of each kind; the first kind of all has the speed 1.

// planDevice is a device with what it is made of.
type planDevice struct {
	torch.Device
	torch.Hardware
}

// kind is the same text for devices that are taken as equal.
func (d planDevice) kind() string { return strings.TrimSpace(d.Kind.String() + " " + d.Hardware.Model) }

// devicesFlag is --devices: a number, or a list of devices.
func devicesFlag(s *pflag.FlagSet, stages *int, devices *[]torch.Device) {
	s.Var(&value{read: func(text string) error {
		n, err := strconv.Atoi(text)
		switch {
		case err == nil && n < 1:
			return errors.New("want at least 1, or names of devices such as cuda:0,cuda:1")
		case err == nil && n > math.MaxInt32:
			return fmt.Errorf("want at most %d", math.MaxInt32)
		case err == nil:
			*stages, *devices = n, nil
			return nil
		}
		var list []torch.Device
		for word := range strings.SplitSeq(text, ",") {
			d, err := device(strings.TrimSpace(word))
			if err != nil {
				return fmt.Errorf("%w, or a number of CPU devices", err)
			}
			list = append(list, d)
		}
		*stages, *devices = len(list), list
		return nil
	}}, "devices", "`P|LIST` as --stages; or, with --model, names of devices of this machine, such as cuda:0,cuda:1, on which it is measured")
}

// deviceNames is devices as --devices takes them.
func deviceNames(devices []torch.Device) string {
	var list []string
	for _, d := range devices {
		list = append(list, d.String())
	}
	return strings.Join(list, ",")
}

// checkNamed refuses devices that no plan is made for together, and those that cannot be used here.
func checkNamed(devices []torch.Device) error {
	refuse := func(format string, args ...any) error {
		return badUsage("--devices %s: %s", deviceNames(devices), fmt.Sprintf(format, args...))
	}
	for i, d := range devices {
		switch {
		case slices.Contains(devices[:i], d):
			return refuse("%v is there twice; want each device once: schedules of several stages on each, with --virtual, need no more", d)
		case d.Kind != devices[0].Kind:
			return refuse("a CPU and a GPU are not planned together, as their times differ layer by layer, by no one factor; want devices of one of the two")
		}
	}
	for _, d := range devices {
		if err := d.Usable(); err != nil {
			return refuse("%v; want cpu:0, cpu:1, ...", err)
		}
	}
	return nil
}

// hardware is what a device is made of. Tests have CPU devices that differ.
var hardware = torch.Device.Hardware

// readDevices reads what devices are made of, which have been checked.
func readDevices(devices []torch.Device) (list []planDevice, err error) {
	for _, d := range devices {
		h, err := hardware(d)
		if err != nil {
			return nil, badUsage("--devices %s: %s", deviceNames(devices), message(err))
		}
		list = append(list, planDevice{d, h})
	}
	return list, nil
}

// describeDevices is devices with their models, for what a plan was made for.
func describeDevices(list []planDevice) string {
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

// deviceKind is devices that are taken as equal.
type deviceKind struct {
	name string
	on   []int // them, in their order
}

// kindsOf puts devices that are taken as equal together, in the order of the first of each.
func kindsOf(list []planDevice) (kinds []deviceKind) {
	for i, d := range list {
		at := slices.IndexFunc(kinds, func(k deviceKind) bool { return k.name == d.kind() })
		if at < 0 {
			at = len(kinds)
			kinds = append(kinds, deviceKind{name: d.kind()})
		}
		kinds[at].on = append(kinds[at].on, i)
	}
	return kinds
}

// machineOf is devices as a search has them, of so many threads each, with the links between them. A GPU may hold
// no more than it has, and each of a kind no more than the one that has least.
func machineOf(list []planDevice, limit int64, threads int, links ...search.Link) search.Machine {
	m := search.Machine{Devices: make([]search.Device, len(list)), Links: links}
	for _, k := range kindsOf(list) {
		bytes := list[k.on[0]].Free
		for _, i := range k.on {
			bytes = min(bytes, list[i].Free)
		}
		if limit > 0 && (bytes == 0 || limit < bytes) {
			bytes = limit
		}
		for _, i := range k.on {
			m.Devices[i] = search.Device{Name: list[i].String(), Bytes: bytes, Threads: threads}
		}
	}
	return m
}

// setSpeeds gives the devices of a machine their speeds, by what all that was measured took on each kind.
func setSpeeds(m search.Machine, kinds []deviceKind, took []float64) {
	for k, kind := range kinds {
		if k == 0 || took[k] <= 0 {
			continue
		}
		for _, i := range kind.on {
			m.Devices[i].Speed = took[0] / took[k]
		}
	}
}

// timeOf is how long the layers of a chain take, forward and backward.
func timeOf(c remat.Chain) (micros float64) {
	for _, l := range c.Layers {
		micros += l.Forward + l.Backward
	}
	return micros
}

// Copies between GPUs are timed as values between processes are (autolinks.go). One that takes some milliseconds says
// the bandwidth.
const copyBytes = 64 << 20

// measureCopies is what copies between each two devices of this process take. The slowest of them counts for all.
func measureCopies(devices []torch.Device) (slowest search.Link, err error) {
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
func timeCopies(from, to torch.Device) search.Link {
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
