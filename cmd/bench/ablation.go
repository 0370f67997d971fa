package main

import (
	"context"

	"penstock/pipe"
	"penstock/schedule"
)

// The ablation is of torchgpipe's benchmark page: a network with skip connections, with a part of the machine taken away or added at a time.
var (
	ablated       = skipped
	ablatedStages = []int{2, 4}
)

// variant is what is changed.
type variant struct {
	name   string
	change func(*pipe.Config)
}

// variants are what a machine of these cores can run; without any there is no binding to them.
func variants(cores []int) []variant {
	list := []variant{
		{"as it is", func(*pipe.Config) {}},
		{"one value on a link", func(c *pipe.Config) { c.Schedule = oneOnALink }},
	}
	if len(cores) == 0 {
		return list
	}
	return append(list, variant{"workers bound to cores", func(c *pipe.Config) {
		for i := range c.Balance {
			c.Cores = append(c.Cores, []int{cores[i%len(cores)]})
		}
	}})
}

// oneOnALink is GPipe with links between neighbours on which one value may wait.
func oneOnALink(c schedule.Config) (*schedule.Program, error) {
	c.Capacity = 1
	return schedule.GPipe(c)
}

// ablation is what was measured over some number of stages.
type ablation struct {
	workload
	Stages   int             `json:"stages"`
	Balance  []int           `json:"balance"`
	Variants []variantResult `json:"variants"` // the first is the pipe as it is
}

// variantResult is a pipeResult whose ratio is to the pipe as it is.
type variantResult struct {
	Name       string  `json:"name"`
	Step       spread  `json:"step_ms"`
	Throughput spread  `json:"samples_per_s"`
	Faster     spread  `json:"throughput_ratio"` // to that of the pipe as it is, round by round
	Peak       []int64 `json:"peak_bytes"`       // by device
	Idle       idle    `json:"idle"`
}

// ablate lets the variants take turns, for each number of stages.
func (w workload) ablate(ctx context.Context, e effort) ([]ablation, error) {
	balances, err := w.partitions(ctx, e.profile, ablatedStages...)
	if err != nil {
		return nil, err
	}
	var out []ablation
	for _, b := range balances {
		a, err := w.ablateOver(ctx, e, b)
		if err != nil {
			return nil, err
		}
		out = append(out, a)
	}
	return out, nil
}

func (w workload) ablateOver(ctx context.Context, e effort, balance []int) (ablation, error) {
	result, list := ablation{workload: w, Stages: len(balance), Balance: balance}, variants(allowedCores())
	var trainers []*trainer
	var contestants []contestant
	defer func() {
		for _, t := range trainers {
			t.close()
		}
	}()
	for i, v := range list {
		config := pipe.Config{Balance: balance}
		v.change(&config)
		t, err := w.trainer(ctx, config, i*len(balance))
		if err != nil {
			return result, err
		}
		trainers, contestants = append(trainers, t), append(contestants, t)
	}
	ms, failures, err := alternate(ctx, e, contestants)
	if err != nil {
		return result, err
	}
	for i, t := range trainers {
		if failures[i] != nil {
			return result, failures[i]
		}
		v := variantResult{Name: list[i].name, Step: spreadOf(ms[i]), Throughput: w.throughput(ms[i]), Faster: paired(ms[0], ms[i]), Peak: t.peaks()}
		if v.Idle, err = t.actions.idle(); err != nil {
			return result, err
		}
		result.Variants = append(result.Variants, v)
	}
	return result, nil
}
