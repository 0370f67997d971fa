package main

import (
	"context"
	"fmt"
	"slices"

	"penstock.example/pipe"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// The schedules are compared on these workloads, over these numbers of devices.
var (
	scheduled        = []workload{workloadOf(mlp, 8), workloadOf("gpt", 8), workloadOf("resnet50", 4)}
	scheduledDevices = []int{2, 4}
)

// workloadOf is the workload of a model and a number of micro-batches.
func workloadOf(model string, chunks int) workload {
	return workloads[slices.IndexFunc(workloads, func(w workload) bool { return w.Model == model && w.Chunks == chunks })]
}

// The names of what is compared under a limit.
const (
	gpipe    = "gpipe"
	oneFOneB = "1f1b"
)

// measureSchedules compares all schedules as a workload is trained, and then, where nothing is
// recomputed, GPipe and 1F1B with the policy optimal where every device has as many bytes as 1F1B
// takes on any without recomputation.
func measureSchedules(ctx context.Context, e effort, list []workload) (out []contest, err error) {
	for _, w := range list {
		for _, devices := range scheduledDevices {
			all, err := w.scheduleVariants(ctx, e, devices)
			if err != nil {
				return nil, fmt.Errorf("%s over %d devices: %w", w.name(), devices, err)
			}
			c, err := w.compare(ctx, e, devices, all)
			if err != nil {
				return nil, fmt.Errorf("%s over %d devices: %w", w.name(), devices, err)
			}
			c.About = "schedules"
			if out = append(out, c); w.Checkpoint != pipe.Never {
				continue
			}
			limit := slices.Max(c.named(oneFOneB).Safe)
			c, err = w.compare(ctx, e, devices, limited(all, limit))
			if err != nil {
				return nil, fmt.Errorf("%s over %d devices under a limit: %w", w.name(), devices, err)
			}
			c.About = fmt.Sprintf("%.1f MiB for each device", mebibytes([]int64{limit})[0])
			out = append(out, c)
		}
	}
	return out, nil
}

// scheduleVariants are a workload under each schedule. GPipe is the first.
func (w workload) scheduleVariants(ctx context.Context, e effort, devices int) (out []variant, err error) {
	balances, err := w.partitions(ctx, e.profile, devices, 2*devices) // by how many stages a device has
	if err != nil {
		return nil, err
	}
	for _, s := range schedule.Schedules() {
		v := variant{name: s.Name, config: pipe.Config{Balance: balances[s.Usual()-1], Schedule: s.Generate}}
		workers, err := s.Workers(devices, s.Usual())
		if err != nil {
			return nil, err
		}
		for _, on := range workers {
			v.config.Devices = append(v.config.Devices, torch.CPU(on))
		}
		out = append(out, v)
	}
	return out, nil
}

// limited are GPipe and 1F1B with the policy optimal and a limit for all devices.
func limited(all []variant, limit int64) (out []variant) {
	for _, v := range all {
		if v.name == gpipe || v.name == oneFOneB {
			v.config.Checkpoint, v.config.Budget = pipe.Optimal, []int64{limit}
			out = append(out, v)
		}
	}
	return out
}

// scheduleTargets are those of 1F1B beside GPipe, the first variant.
func scheduleTargets(list []contest) (out []target) {
	for _, c := range list {
		for _, v := range c.Variants {
			if v.Name != oneFOneB {
				continue
			}
			name, least := fmt.Sprintf("%s, %d micro-batches, %d devices: 1f1b's throughput to gpipe's", c.name(), c.Chunks, c.Devices), 0.98
			if len(c.Variants) == 2 {
				name, least = name+" under its limit", 1.15
			}
			out = append(out, atLeast(name, v.Faster.Median, least))
		}
	}
	return out
}
