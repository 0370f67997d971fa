package main

import (
	"fmt"
	"math"

	"penstock.example/internal/arg"
	"penstock.example/nn"
	"penstock.example/planner/search"
)

// What no plan avoids is known before anything is measured: parameters, their gradients, and what the
// optimizer keeps of them are on some device when an update begins.

// weighed is that in bytes of all layers, and of the layer that has most, which no cut parts.
type weighed struct {
	all, most int64
	layer     string
	state     int64 // of that layer, the optimizer's
}

// weigh says what a model holds, whose optimizer keeps so many tensors for each parameter.
func weigh(model *nn.Sequential, slots int) (h weighed) {
	sum := func(m nn.Module) (bytes, state int64) {
		for _, p := range nn.State(m) {
			if bytes += p.Bytes(); p.Trainable() {
				bytes, state = bytes+int64(1+slots)*p.Bytes(), state+int64(slots)*p.Bytes()
			}
		}
		return bytes, state
	}
	h.all, _ = sum(model)
	for _, l := range model.Layers() {
		if n, state := sum(l.Layer); n > h.most {
			h.most, h.layer, h.state = n, l.Name, state
		}
	}
	return h
}

// measuredSoon is the most bytes of a model that is measured although it cannot fit, for the least limit that
// will do: it takes no more than half a minute.
const measuredSoon = 1 << 29

// limits are the most bytes that a machine's devices may hold together, and one of them; no bound is
// math.MaxInt64.
func limits(machine search.Machine, devices, threads int, limit int64) (all, one int64) {
	sum := func(a, b int64) int64 {
		if a > math.MaxInt64-b {
			return math.MaxInt64
		}
		return a + b
	}
	for _, d := range machine.Devices {
		parts := max(d.Threads, 1) / threads // that share it
		if parts == 0 {
			continue
		}
		own := int64(math.MaxInt64)
		if d.Bytes > 0 {
			own = d.Bytes
		}
		if limit > 0 {
			one = max(one, min(own, limit))
			all = sum(all, min(own, int64(parts)*limit))
			continue
		}
		one, all = max(one, own), sum(all, own)
	}
	if limit > 0 && devices > 0 {
		all = min(all, int64(devices)*limit)
	}
	return all, one
}

// refuse says why a model cannot fit, whatever its steps take beside this, and which limit is not enough yet;
// nil if it may fit. Remedy is what to give instead where the least limit is not found.
func (h weighed) refuse(optimizer string, machine search.Machine, devices, threads int, limit int64) (why, remedy string) {
	all, one := limits(machine, devices, threads, limit)
	const what = "parameters, gradients and %s's state"
	const more = "; the least limit, which is higher, is told within that"
	switch {
	case h.most > one:
		why = fmt.Sprintf("layer %q takes %s for its "+what+", and a device may have %s", h.layer, arg.Size(h.most), optimizer, arg.Size(one))
		remedy = fmt.Sprintf("more devices will not help; want a limit of more than %s", arg.Size(h.most))
		if h.most-h.state <= one {
			remedy += ", or an --optimizer of less state"
		}
	case h.all > all && devices > 0 && limit > 0 && all == int64(devices)*limit:
		why = fmt.Sprintf(what+" take %s, and all devices together may have %s", optimizer, arg.Size(h.all), arg.Size(all))
		remedy = fmt.Sprintf("want a limit of more than %s, or more than %d devices", arg.Size((h.all+int64(devices)-1)/int64(devices)), (h.all-1)/limit)
	case h.all > all:
		why = fmt.Sprintf(what+" take %s, and all devices together may have %s", optimizer, arg.Size(h.all), arg.Size(all))
		remedy = "want more devices, or higher limits"
	default:
		return "", ""
	}
	return why, remedy + more
}
