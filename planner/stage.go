package planner

import (
	"slices"

	"penstock.example/remat"
	"penstock.example/schedule"
)

// Problem is a step to plan.
type Problem struct {
	Devices      []Device // each has a worker of the same number
	Stages       []Stage
	MicroBatches int    // 1 or more
	Skips        []Skip // values that move directly between stages
	Ties         []Tie  // parameters that several stages use
	// Larger is the number of micro-batches that have the most rows, which are the first; the
	// others have Stage.Fewer. 0 is all.
	Larger   int
	Schedule schedule.Generator // makes the program; nil is schedule.GPipe
	Meet     bool               // nothing may wait on links between neighbours, whatever the limits
	// NoBound leaves out the lower bounds of devices, DevicePlan.LowerBound, which take most of the
	// time: they are then the times without recomputation. The plan is the same.
	NoBound bool
	// Rough plans devices by coarse tables alone, as solver.Options has it: sooner, for steps that
	// are a little longer.
	Rough bool
}

// Device is a device of a problem. Limit and Live count if its stages have the policy Optimal.
type Device struct {
	Name  string // such as "cpu:0"
	Limit int64  // the most bytes that it may hold; 0 is none
	// Live is held between steps: parameters, buffers, the batch, gradients and optimizer state
	// that exist.
	Live int64
}

// Stage is a stage of a problem.
type Stage struct {
	Device int // an index into Devices
	Layers int // of the model
	Policy Policy
	Costs  Costs  // for Optimal alone
	Fewer  *Costs // those of micro-batches of fewer rows, if there are any; its times and units do not count
	Memory Memory // for Optimal alone
}

// Costs is the bytes and times of a stage for one micro-batch. Package profile measures them. Sizes
// are bytes.
type Costs struct {
	// First is the chain of the first micro-batch of a step. Its backward allocates the gradients of
	// parameters. Later is the chain of the others, and of the first if the gradients exist already.
	// The layers of both are the units of the stage after the prologue.
	First, Later remat.Chain
	// Split and SplitLater are the same for backwards in two parts; their backwards are the first
	// parts. Without layers they are First and Later. Without a Footprint the first part of a layer
	// with weights leaves its input and the gradient of its output to the second.
	Split, SplitLater remat.Chain
	// Footprint is the bytes of the stage, block by block. Nil is made from the chains.
	Footprint *Footprint
	// Units is the number of layers in each unit; a loss that ends the last stage counts as a
	// layer.
	Units []int
	// Prologue is the number of units at the beginning that have no backward: nothing in them is
	// trained, and no gradient of their input is wanted. They run once. ProloguePeak is their peak,
	// without the stage's input.
	Prologue     int
	ProloguePeak int64
	// Given is the bytes received from the stage before, Gives the bytes sent to the next. They
	// count without a Footprint.
	Given, Gives int64
	// Spread is how much longer the median of a layer's timed runs took than the time that counts,
	// as a part of it.
	Spread float64
	// Statistics is the bytes that deferred batch norms accumulate until the end of the step.
	Statistics int64
}

// Memory is the bytes that a stage's device holds for it during a step in any plan, in addition to
// live ones.
type Memory struct {
	Unplaced int64 // parameters and buffers that do not exist yet
	State    int64 // optimizer state that does not exist yet
	Outputs  int64 // the whole batch's outputs and their gradients, where the caller computes the loss
	// Gradients says that all parameters have gradients. If only some have, those count twice.
	Gradients bool
	// InputGradient is the gradient of the batch's input, which every backward of the first stage
	// makes in full. The first one stays; if one exists (InputHasGradient), all are added to it.
	InputGradient    int64
	InputHasGradient bool
	// BatchInput says that the stage's input is a view of the batch, which Live includes.
	BatchInput bool
	// Reduction is the most bytes of another replica's gradients that the stage holds at a time.
	// They may exist from the reduction in the program to the end of the step, as it goes on while
	// the device continues.
	Reduction int64
}

// base returns the bytes that a device holds during a step in any plan.
func (p Problem) base(device int) int64 {
	sum := p.Devices[device].Live
	for _, s := range p.Stages {
		if s.Device == device {
			sum += s.Memory.Unplaced + s.Memory.State + s.Memory.Outputs
		}
	}
	return sum
}

// Splits reports whether the program has backwards in two parts. It is false if the schedule makes
// no program, which Solve refuses.
func (p Problem) Splits() bool {
	program, err := p.program(0)
	return err == nil && slices.ContainsFunc(slices.Concat(program.Workers...), func(a schedule.Action) bool { return a.Kind == schedule.BackwardInput })
}

// chains returns the chains of a stage's micro-batches in this step, with the kind of backwards in
// a program: for the first micro-batch, for later ones, and for later ones with fewer rows. If only
// some backwards of later ones are in two parts, theirs are whole.
func (p Problem) chains(stage int, program *schedule.Program) (first, later, fewer remat.Chain) {
	s := &p.Stages[stage]
	splits := make([]bool, p.MicroBatches)
	for _, a := range program.Workers[s.Device] {
		if a.Kind == schedule.BackwardInput && a.Stage == stage {
			splits[a.MicroBatch] = true
		}
	}
	split := !slices.Contains(splits[1:], false) && p.MicroBatches > 1
	later, fewer = s.Costs.chain(false, split), s.smaller().chain(false, split)
	first = s.Costs.chain(!s.Memory.Gradients, splits[0])
	if s.Memory.BatchInput && s.Costs.Prologue == 0 {
		first, later, fewer = first.WithoutInput(), later.WithoutInput(), fewer.WithoutInput()
	}
	return first, later, fewer
}

func (s *Stage) smaller() *Costs {
	if s.Fewer != nil {
		return s.Fewer
	}
	return &s.Costs
}

// chain returns the chain of a micro-batch that makes the gradients of parameters, or adds to them,
// in a backward in one or in two parts.
func (c *Costs) chain(makes, split bool) remat.Chain {
	whole, parts := c.Later, c.SplitLater
	if makes {
		whole, parts = c.First, c.Split
	}
	if split && len(parts.Layers) > 0 {
		return parts
	}
	return whole
}

// prologue returns the peak of the prologue. It includes the input if no chain does.
func (s Stage) prologue() int64 {
	if s.Costs.Prologue > 0 && !s.Memory.BatchInput {
		return s.Costs.ProloguePeak + s.Costs.Given
	}
	return s.Costs.ProloguePeak
}
