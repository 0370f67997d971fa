package plan

import (
	"errors"
	"fmt"
	"slices"

	"penstock.example/remat"
	"penstock.example/schedule"
)

// Check returns an error unless the plan can run. The program must pass schedule.Check. The
// operations of every micro-batch must be complete and in a possible order. The program must
// recompute exactly the micro-batches with operations for it. Worker i must have the stages of
// device i. Peaks must not be above their limits, and must equal the program's, unless the plan was
// read: then only its peaks are known.
func (p *Plan) Check() error {
	if p == nil || p.Program == nil {
		return errors.New("plan: the plan has no program")
	}
	if err := schedule.Check(p.Program, schedule.Limits{}); err != nil {
		return fmt.Errorf("plan: %w", err)
	}
	if p.Program.Phase != schedule.Whole {
		return fmt.Errorf("plan: the plan's program is %v; want one of a whole step", p.Program.Phase)
	}
	if len(p.Stages) != p.Program.Stages {
		return fmt.Errorf("plan: %d stages, and a program for %d", len(p.Stages), p.Program.Stages)
	}
	if err := p.checkDevices(); err != nil {
		return fmt.Errorf("plan: %w", err)
	}
	again := map[[2]int]bool{}
	for _, actions := range p.Program.Workers {
		for _, a := range actions {
			if a.Kind == schedule.Recompute {
				again[[2]int{a.Stage, a.MicroBatch}] = true
			}
		}
	}
	for i, s := range p.Stages {
		if err := s.check(p.Program.MicroBatches); err != nil {
			return fmt.Errorf("plan: stage %d: %w", i, err)
		}
		for b := range s.MicroBatches {
			switch in := again[[2]int{i, b}]; {
			case in && !p.recomputes(i, b):
				return fmt.Errorf("plan: the program has %dR%d, and stage %d has nothing to recompute between the "+
					"loss and the first backward of micro-batch %d", i, b, i, b)
			case !in && p.recomputes(i, b):
				return fmt.Errorf("plan: the program lacks %dR%d, which the operations of stage %d, micro-batch %d, "+
					"ask for", i, b, i, b)
			}
		}
	}
	return p.checkPeaks()
}

// checkDevices checks that each worker has the actions of its device's stages, and that either all
// stages of a device have the policy Optimal or none has.
func (p *Plan) checkDevices() error {
	if len(p.Devices) != len(p.Program.Workers) {
		return fmt.Errorf("%d devices, and a program for %d workers", len(p.Devices), len(p.Program.Workers))
	}
	for i, d := range p.Devices {
		if d.Name == "" || slices.ContainsFunc(p.Devices[:i], func(o DevicePlan) bool { return o.Name == d.Name }) {
			return fmt.Errorf("device %d is called %q; want a name that no other has", i, d.Name)
		}
		if d.Limit < 0 || d.Base < 0 || d.Limit > 0 && d.Peak > d.Limit {
			return fmt.Errorf("device %s: a peak of %d bytes with a limit of %d", d.Name, d.Peak, d.Limit)
		}
	}
	for i, s := range p.Stages {
		if s.Device < 0 || s.Device >= len(p.Devices) {
			return fmt.Errorf("stage %d is on device %d; want 0 to %d", i, s.Device, len(p.Devices)-1)
		}
		if p.planned(s.Device) && s.Policy != Optimal {
			return fmt.Errorf("stage %d has the policy %s, and another stage on %s has %s; want it for all stages of a device",
				i, s.Policy, p.Devices[s.Device].Name, Optimal)
		}
	}
	for w, actions := range p.Program.Workers {
		for _, a := range actions {
			if s := p.Stages[a.Stage]; s.Device != w {
				return fmt.Errorf("worker %d does %v, and stage %d is on %s, which is worker %d", w,
					a, a.Stage, p.Devices[s.Device].Name, s.Device)
			}
		}
	}
	return nil
}

// checkPeaks checks the predicted peaks of devices with known footprints.
func (p *Plan) checkPeaks() error {
	again := *p
	again.Devices = slices.Clone(p.Devices)
	again.predictPeaks()
	for i, d := range again.Devices {
		if have := p.Devices[i].Peak; d.Peak != have {
			return fmt.Errorf("plan: device %s: a peak of %d bytes, and its program takes %d",
				d.Name, have, d.Peak)
		}
	}
	return nil
}

func (s StagePlan) check(microBatches int) error {
	units := s.Units
	if units == nil {
		units = []int{s.Layers}
	}
	sum := 0
	for i, n := range units {
		if n < 1 {
			return fmt.Errorf("unit %d has %d layers; want at least 1", i, n)
		}
		sum += n
	}
	switch {
	case !slices.Contains(Policies, s.Policy):
		return fmt.Errorf("policy %q; want one of %v", s.Policy, Policies)
	case s.Units != nil && s.Policy != Optimal:
		return fmt.Errorf("%d units with the policy %s; want none, which is one unit", len(s.Units), s.Policy)
	case s.Layers < 1 || sum != s.Layers && sum != s.Layers+1: // the loss may be one
		return fmt.Errorf("units of %d layers, and the stage has %d", sum, s.Layers)
	case s.Prologue < 0 || s.Prologue > len(units):
		return fmt.Errorf("a prologue of %d units, and there are %d", s.Prologue, len(units))
	case len(s.MicroBatches) != microBatches:
		return fmt.Errorf("operations of %d micro-batches, and the program has %d",
			len(s.MicroBatches), microBatches)
	}
	chain := remat.Chain{Layers: make([]remat.Layer, len(units)-s.Prologue)}
	for b, m := range s.MicroBatches {
		if err := checkOps(chain, m.Ops, s.Prologue); err != nil {
			return fmt.Errorf("micro-batch %d: %w", b, err)
		}
	}
	return nil
}

// checkOps checks operations on units. The first prologue units have no backward. The costs in the
// chain are not used.
func checkOps(c remat.Chain, ops []remat.Op, prologue int) error {
	if len(ops) < prologue {
		return fmt.Errorf("%d operations, and %d units run before the first that is trained",
			len(ops), prologue)
	}
	rest := slices.Clone(ops[prologue:])
	for i, op := range ops[:prologue] {
		if op != (remat.Op{Kind: remat.Forward, Layer: i}) {
			return fmt.Errorf("operation %d is %v; want F%d, as the unit has no backward", i, op, i)
		}
	}
	for i := range rest {
		if rest[i].Kind != remat.LossStep {
			rest[i].Layer -= prologue
		}
	}
	if len(c.Layers) == 0 {
		if len(rest) > 0 {
			return fmt.Errorf("operation %d is %v; want none after the last unit, as nothing has a backward",
				prologue, ops[prologue])
		}
		return nil
	}
	_, err := remat.Check(c, rest)
	return err
}
