package plan

import (
	"errors"
	"fmt"
	"slices"

	"penstock.example/remat"
	"penstock.example/schedule"
)

// Check returns an error unless the plan can run. The program must pass schedule.Check, and recompute
// exactly the micro-batches with operations for it. Every micro-batch's operations must be complete and
// in a possible order. Worker i must have the stages of device i. Peaks must not exceed their limits,
// and must equal the program's if they can be computed.
func (p *Plan) Check() error {
	if p == nil || p.Program == nil {
		return errors.New("plan: the plan has no program")
	}
	if err := schedule.Check(p.Program); err != nil {
		return fmt.Errorf("plan: %w", err)
	}
	if p.Program.Phase != schedule.Whole {
		return fmt.Errorf("plan: the plan's program is %v; want one of a whole step", p.Program.Phase)
	}
	if len(p.Stages) != p.Program.Stages || len(p.Devices) != len(p.Program.Workers) {
		return fmt.Errorf("plan: %d stages on %d devices, and a program for %d stages on %d", len(p.Stages),
			len(p.Devices), p.Program.Stages, len(p.Program.Workers))
	}
	for i, d := range p.Devices {
		switch {
		case d.Name == "" || slices.ContainsFunc(p.Devices[:i],
			func(o DevicePlan) bool { return o.Name == d.Name }):
			return fmt.Errorf("plan: device %d is called %q; want a name that no other has", i, d.Name)
		case d.Limit < 0 || d.Base < 0 || d.Limit > 0 && d.Peak > d.Limit:
			return fmt.Errorf("plan: device %s: a peak of %d bytes with a limit of %d", d.Name, d.Peak,
				d.Limit)
		}
	}
	graph := p.Program.Graph()
	for i, s := range p.Stages {
		if s.Device < 0 || s.Device >= len(p.Devices) || p.planned(s.Device) && s.Policy != Optimal {
			return fmt.Errorf("plan: stage %d with the policy %s is on device %d; want %s for all stages of "+
				"a device, or for none", i, s.Policy, s.Device, Optimal)
		}
		if err := s.check(p.Program.MicroBatches); err != nil {
			return fmt.Errorf("plan: stage %d: %w", i, err)
		}
		for b := range s.MicroBatches {
			_, in := graph.IndexOf(schedule.Action{Kind: schedule.Recompute, Stage: i, MicroBatch: b})
			if wanted := p.recomputes(i, b); in != wanted {
				return fmt.Errorf("plan: the program has %dR%d: %v; the stage's operations need it: %v", i, b,
					in, wanted)
			}
			forward, _ := graph.IndexOf(schedule.Action{Kind: schedule.Forward, Stage: i, MicroBatch: b})
			if w := graph.Worker[forward]; w != s.Device {
				return fmt.Errorf("plan: stage %d is on device %d, and worker %d performs it", i, s.Device, w)
			}
		}
	}
	again := *p
	again.Devices = slices.Clone(p.Devices)
	again.predictPeaks()
	for i, d := range again.Devices {
		if have := p.Devices[i].Peak; d.Peak != have {
			return fmt.Errorf("plan: device %s: a peak of %d bytes, and its program needs %d", d.Name, have,
				d.Peak)
		}
	}
	return nil
}

func (s StagePlan) check(microBatches int) error {
	units, sum := s.Units, 0
	if units == nil {
		units = []int{s.Layers}
	}
	for i, n := range units {
		if sum += n; n < 1 {
			return fmt.Errorf("unit %d has %d layers; want at least 1", i, n)
		}
	}
	switch {
	case !slices.Contains(Policies, s.Policy):
		return fmt.Errorf("policy %q; want one of %v", s.Policy, Policies)
	case s.Units != nil && s.Policy != Optimal:
		return fmt.Errorf("%d units with the policy %s; want none, which is one unit", len(s.Units), s.Policy)
	case sum != s.Layers && sum != s.Layers+1: // the loss may be one
		return fmt.Errorf("units of %d layers, and the stage has %d", sum, s.Layers)
	case s.Prologue < 0 || s.Prologue > len(units):
		return fmt.Errorf("a prologue of %d units, and there are %d", s.Prologue, len(units))
	case len(s.MicroBatches) != microBatches:
		return fmt.Errorf("operations of %d micro-batches, and the program has %d",
			len(s.MicroBatches), microBatches)
	}
	for b, m := range s.MicroBatches {
		if err := checkOps(len(units), m.Ops, s.Prologue); err != nil {
			return fmt.Errorf("micro-batch %d: %w", b, err)
		}
	}
	return nil
}

// checkOps checks operations on units. The first prologue units run once, and have no backward.
func checkOps(units int, ops []remat.Op, prologue int) error {
	if len(ops) < prologue {
		return fmt.Errorf("%d operations; want a forward of each of the first %d units", len(ops), prologue)
	}
	for i, op := range ops[:prologue] {
		if want := (remat.Op{Kind: remat.Forward, Layer: i}); op != want {
			return fmt.Errorf("operation %d is %v; want %v, as the unit has no backward", i, op, want)
		}
	}
	rest := slices.Clone(ops[prologue:])
	for i := range rest {
		if rest[i].Kind != remat.LossStep {
			rest[i].Layer -= prologue
		}
	}
	if units == prologue && len(rest) == 0 {
		return nil
	}
	_, err := remat.Check(remat.Chain{Layers: make([]remat.Layer, units-prologue)}, rest)
	return err
}
