package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"penstock.example/torch"
)

// The parts of a run that are not workloads, which go by the names of their models.
const (
	productPart  = "product"
	cellPart     = "cell"
	ablationPart = "ablation"
	schedulePart = "schedules"
	rematPart    = "remat"
	timesPart    = "times"
)

// parts lists what --only may name.
func parts() []string {
	list := []string{productPart, cellPart}
	for _, w := range workloads {
		if !slices.Contains(list, w.Model) {
			list = append(list, w.Model)
		}
	}
	return append(list, ablationPart, schedulePart, processesPart, timesPart, plansPart, plainPart, rematPart, devicesPart)
}

// selection is what a run measures.
type selection []string

// choose reads a list of parts, which is empty for all of them but that of --devices.
func choose(list string) (selection, error) {
	all := parts()
	if list == "" {
		return all[:len(all)-1], nil // without devicesPart: on a CPU others say more
	}
	chosen := selection(strings.Split(list, ","))
	for _, name := range chosen {
		if !slices.Contains(all, name) {
			return nil, fmt.Errorf("--only: there is no part %q; want some of %s", name, strings.Join(all, ", "))
		}
	}
	return chosen, nil
}

func (s selection) has(part string) bool { return slices.Contains(s, part) }

// measure fills the report. What fails in libtorch comes back as an error.
func measure(ctx context.Context, chosen selection, e effort, others []*child, beside opponents, r *report) error {
	var err error
	if failed := torch.Try(func() { err = chosen.measure(ctx, e, others, beside, r) }); failed != nil {
		return failed
	}
	return err
}

func (s selection) measure(ctx context.Context, e effort, others []*child, beside opponents, r *report) error {
	if s.has(productPart) {
		p := measureProduct(e.products)
		r.Product = &p
	}
	if s.has(cellPart) {
		ours, err := measureCell(ctx, e.blocks)
		if err != nil {
			return err
		}
		r.Cells = append(r.Cells, ours)
		for _, c := range others {
			theirs, err := c.cell(e.blocks)
			if err != nil {
				return err
			}
			r.Cells = append(r.Cells, theirs)
		}
	}
	for _, w := range workloads {
		if !s.has(w.Model) {
			continue
		}
		result, err := w.measure(ctx, e, others)
		if err != nil {
			return fmt.Errorf("%s in %d micro-batches: %w", w.name(), w.Chunks, err)
		}
		r.Workloads = append(r.Workloads, result)
	}
	if s.has(ablationPart) {
		var err error
		if r.Ablations, err = ablated.ablate(ctx, e); err != nil {
			return fmt.Errorf("ablation: %w", err)
		}
	}
	if s.has(schedulePart) {
		var err error
		if r.Schedules, err = measureSchedules(ctx, e, scheduled); err != nil {
			return fmt.Errorf("schedules: %w", err)
		}
	}
	if s.has(processesPart) {
		var err error
		if r.Processes, err = measureProcesses(ctx, e, pairings(), beside.chroot); err != nil {
			return fmt.Errorf("processes: %w", err)
		}
	}
	if s.has(timesPart) {
		var err error
		if r.StepTimes, err = measureStepTimes(ctx, e); err != nil {
			return fmt.Errorf("times: %w", err)
		}
	}
	known := newCosts(e)
	if s.has(plansPart) {
		var err error
		if r.Plans, err = measurePlans(ctx, e, known, plainWorkloads(), cores()); err != nil {
			return fmt.Errorf("plans: %w", err)
		}
	}
	if s.has(plainPart) {
		var err error
		if r.Plain, err = measurePlain(ctx, e, known, plainWorkloads(), cores()); err != nil {
			return fmt.Errorf("plain: %w", err)
		}
	}
	if s.has(rematPart) {
		var err error
		if r.Remat, err = measureRemat(ctx, e); err != nil {
			return fmt.Errorf("remat: %w", err)
		}
	}
	if s.has(devicesPart) {
		var err error
		if r.Devices, err = measureDevices(ctx, e, beside); err != nil {
			return fmt.Errorf("devices: %w", err)
		}
	}
	return nil
}
