package main

import (
	"context"

	"penstock.example/pipe"
	"penstock.example/schedule"
)

// The ablation is of torchgpipe's benchmark page: a network with skip connections, with a part of
// the machine taken away or added at a time.
var (
	ablated       = skipped
	ablatedStages = []int{2, 4}
)

// variants are what a machine of these cores can run; without any there is no binding to them.
func variants(balance, cores []int) []variant {
	list := []variant{
		{"as it is", pipe.Config{Balance: balance}},
		{"one value on a link", pipe.Config{Balance: balance, Schedule: oneOnALink}},
	}
	if len(cores) == 0 {
		return list
	}
	bound := pipe.Config{Balance: balance}
	for i := range balance {
		bound.Cores = append(bound.Cores, []int{cores[i%len(cores)]})
	}
	return append(list, variant{"workers bound to cores", bound})
}

// oneOnALink is GPipe with links between neighbours on which one value may wait.
func oneOnALink(c schedule.Config) (*schedule.Program, error) {
	c.Capacity = 1
	return schedule.GPipe(c)
}

// ablate compares the variants, for each number of stages.
func (w workload) ablate(ctx context.Context, e effort) ([]contest, error) {
	balances, err := w.partitions(ctx, e.profile, ablatedStages...)
	if err != nil {
		return nil, err
	}
	var out []contest
	for _, b := range balances {
		a, err := w.compare(ctx, e, len(b), variants(b, allowedCores()))
		if err != nil {
			return nil, err
		}
		out = append(out, a)
	}
	return out, nil
}
