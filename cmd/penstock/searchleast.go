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
}

// weigh says what a model holds, whose optimizer keeps so many tensors for each parameter.
func weigh(model *nn.Sequential, slots int) (h weighed) {
	sum := func(m nn.Module) (bytes int64) {
		for _, p := range nn.State(m) {
			if bytes += p.Bytes(); p.Trainable() {
				bytes += int64(1+slots) * p.Bytes()
			}
		}
		return bytes
	}
	h.all = sum(model)
	for _, l := range model.Layers() {
		if n := sum(l.Layer); n > h.most {
			h.most, h.layer = n, l.Name
		}
	}
	return h
}

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

// refuse returns a usage error where a model cannot fit, whatever its steps take beside this.
func (h weighed) refuse(optimizer string, machine search.Machine, devices, threads int, limit int64) error {
	all, one := limits(machine, devices, threads, limit)
	const what = "parameters, gradients and %s's state"
	switch {
	case h.most > one:
		return badUsage("no plan keeps the limits: layer %q takes %s for its "+what+", and a device may have %s; want a limit of at least as many bytes, and more for what a step takes beside",
			h.layer, arg.Size(h.most), optimizer, arg.Size(one))
	case h.all > all:
		text := fmt.Sprintf("no plan keeps the limits: "+what+" take %s, and all devices together may have %s", optimizer, arg.Size(h.all), arg.Size(all))
		if devices == 0 || limit == 0 || all != int64(devices)*limit {
			return badUsage("%s; want more devices, or higher limits", text)
		}
		return badUsage("%s; want a limit of at least %s, or %d devices, and more for what a step takes beside",
			text, arg.Size((h.all+int64(devices)-1)/int64(devices)), (h.all+limit-1)/limit)
	}
	return nil
}
