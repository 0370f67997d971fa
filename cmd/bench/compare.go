package main

import (
	"context"
	"fmt"
	"slices"

	"penstock.example/pipe"
	"penstock.example/torch"
)

// variant is a way to run a workload. Devices that are not given are one for each stage.
type variant struct {
	name   string
	config pipe.Config
}

// contest is what was measured of variants of a workload over some number of devices.
type contest struct {
	workload
	About    string          `json:"variants_of,omitempty"`
	Devices  int             `json:"devices"`
	Variants []variantResult `json:"variants"` // the first is what the others are compared with
}

// variantResult is what was measured of a variant.
type variantResult struct {
	Name       string  `json:"name"`
	Balance    []int   `json:"balance"`
	Step       spread  `json:"step_ms"`
	Throughput spread  `json:"samples_per_s"`
	Faster     spread  `json:"throughput_ratio"` // to that of the first variant, round by round
	Peak       []int64 `json:"peak_bytes"`       // by device
	Safe       []int64 `json:"safe_bytes"`       // limits under which the steps cannot run out of memory (pipe.SafeLimit)
	Idle       idle    `json:"idle"`
}

// compare lets the variants take turns. Each has as many devices, and accounts of its own.
func (w workload) compare(ctx context.Context, e effort, devices int, list []variant) (contest, error) {
	result := contest{workload: w, Devices: devices}
	var trainers []*trainer
	var contestants []contestant
	defer func() {
		for _, t := range trainers {
			t.close()
		}
	}()
	for i, v := range list {
		t, err := w.trainer(ctx, v.config, i*devices)
		if err != nil {
			return result, fmt.Errorf("%s: %w", v.name, err)
		}
		trainers, contestants = append(trainers, t), append(contestants, t)
	}
	ms, failures, err := alternate(ctx, e, contestants)
	if err != nil {
		return result, err
	}
	for i, t := range trainers {
		if failures[i] != nil {
			return result, fmt.Errorf("%s: %w", list[i].name, failures[i])
		}
		v := variantResult{Name: list[i].name, Balance: t.pipe.Config().Balance, Step: spreadOf(ms[i]), Throughput: w.throughput(ms[i]),
			Faster: paired(ms[0], ms[i]), Peak: t.peaks(), Safe: t.pipe.SafeLimit()}
		if v.Idle, err = t.actions.idle(); err != nil {
			return result, fmt.Errorf("%s: %w", list[i].name, err)
		}
		result.Variants = append(result.Variants, v)
	}
	return result, nil
}

// named is the result of the variant of that name.
func (c contest) named(name string) variantResult {
	return c.Variants[slices.IndexFunc(c.Variants, func(v variantResult) bool { return v.Name == name })]
}

// devices are those of a config's stages. CPU devices are counted from first on: cpu:0 becomes
// cpu:first. GPUs stay, as there are no more of them.
func devices(config pipe.Config, first int) []torch.Device {
	var out []torch.Device
	for i := range config.Balance {
		if config.Devices != nil {
			if d := config.Devices[i]; d.Kind != torch.KindCPU {
				out = append(out, d)
				continue
			}
			i = config.Devices[i].Index
		}
		out = append(out, torch.CPU(first+i))
	}
	return out
}

// writeComparisons prints a block for each.
func (t *table) writeComparisons(list []contest) {
	for _, c := range list {
		about := c.About
		if about != "" {
			about = ", " + about
		}
		t.block(fmt.Sprintf("%s over %d devices%s", c.name(), c.Devices, about), "balance", "samples/s", "to the first", "min-max", "idle", "simulated", "peak MiB")
		for _, v := range c.Variants {
			t.line(v.Name, join("%d", v.Balance), one(v.Throughput.Median, "%.1f"), one(v.Faster.Median, "%.2f"), span("%.2f", v.Faster),
				join("%.2f", v.Idle.Measured), join("%.2f", v.Idle.Predicted), join("%.1f", mebibytes(v.Peak)))
		}
	}
}
