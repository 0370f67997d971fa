package planner

import (
	"penstock/remat"
	"penstock/schedule"
)

// Problem is what is known of a step before it is planned.
type Problem struct {
	Devices      []Device // each has a worker of the same number
	Stages       []Stage
	MicroBatches int                // 1 or more
	Skips        []schedule.Edge    // stages between which values move directly
	Schedule     schedule.Generator // makes the program; nil is schedule.GPipe
	Meet         bool               // nothing may wait on links between neighbours, whatever the limits
}

// Device is what is known of a device. Limit and Live count if its stages have the policy Optimal.
type Device struct {
	Name  string // such as "cpu:0"
	Limit int64  // the most bytes that it may hold; 0 is none
	// Live is held between steps: parameters, buffers, the batch, gradients and optimizer state
	// that exist.
	Live int64
}

// Stage is what is known of a stage.
type Stage struct {
	Device int // an index into Devices
	Layers int // of the model
	Policy Policy
	Costs  Costs  // for Optimal alone
	Memory Memory // for Optimal alone
}

// Costs is the bytes and times that a stage takes for one micro-batch. Package profile measures
// them. Sizes are bytes.
type Costs struct {
	// First is the chain of the first micro-batch of a step, whose backward allocates the gradients
	// of parameters. Later is the chain of the others, and of the first where the gradients exist
	// already. The layers of both are the units of the stage after the prologue.
	First, Later remat.Chain
	// Units is the number of layers in each unit; a loss that ends the last stage counts as a
	// layer.
	Units []int
	// Prologue is the number of units at the beginning that have no backward: nothing in them is
	// trained, and no gradient of their input is wanted. They run once. ProloguePeak is the most
	// that they hold beside the stage's input.
	Prologue     int
	ProloguePeak int64
	// Given is the size of what the stage receives from the one before. Gives is the size of what
	// it sends to the next.
	Given, Gives int64
	// SkipsIn and SkipsOut are the sizes of the skips that it receives and sends.
	SkipsIn, SkipsOut int64
	// Spread is how much longer the median of a layer's timed runs took than what counts, as a part
	// of that.
	Spread float64
	// Statistics is the size of what deferred batch norms accumulate until the end of the step.
	Statistics int64
	// Deferred is the most that a micro-batch holds between the two parts of a backward, where
	// backwards are in two.
	Deferred int64
}

// Memory is what a stage's device will hold for it during a step, whatever is recomputed, beyond
// what is live. Sizes are bytes.
type Memory struct {
	Unplaced int64 // parameters and buffers that do not exist yet
	State    int64 // optimizer state that does not exist yet
	Outputs  int64 // the whole batch's outputs and their gradients, where the caller computes the loss
	Tied     int64 // gradients of parameters that other stages use, received or waiting to be sent
	// Gradients says that all parameters have gradients. If only some have, those count twice.
	Gradients bool
	// BatchInput says that the stage's input is a view of the batch, which Live includes.
	BatchInput bool
}

// base is the bytes that a device holds during a step whatever is recomputed. While a stage works,
// the skips of a micro-batch may be there beside what its chains count. What is held between the
// parts of backwards is counted beside all that is held before, in the order of a program.
func (p Problem) base(device int, program *schedule.Program) int64 {
	sum := p.Devices[device].Live
	var most []int
	for i, s := range p.Stages {
		if s.Device != device {
			continue
		}
		m, c := s.Memory, s.Costs
		sum += m.Unplaced + m.State + c.Statistics + c.SkipsIn + c.SkipsOut + m.Outputs + m.Tied
		if c.Deferred == 0 {
			continue
		}
		if most == nil {
			most = deferred(program)
		}
		sum += int64(most[i]) * c.Deferred
	}
	return sum
}

// Deferred returns, by stage, of how many micro-batches at most the first part of the backward has
// begun and the second has not ended, in the order of the program. They are 0 where the schedule has
// no program, which Solve refuses.
func (p Problem) Deferred() []int {
	program, err := p.program(0)
	if err != nil {
		return make([]int, len(p.Stages))
	}
	return deferred(program)
}

// deferred is Problem.Deferred of a program.
func deferred(program *schedule.Program) []int {
	now, most := make([]int, program.Stages), make([]int, program.Stages)
	for _, actions := range program.Workers {
		for _, a := range actions {
			switch a.Kind {
			case schedule.BackwardInput:
				now[a.Stage]++
				most[a.Stage] = max(most[a.Stage], now[a.Stage])
			case schedule.BackwardWeight:
				now[a.Stage]--
			}
		}
	}
	return most
}

// chains are the chains of the first and of later micro-batches in this step.
func (s Stage) chains() (first, later remat.Chain) {
	first, later = s.Costs.First, s.Costs.Later
	if s.Memory.BatchInput && s.Costs.Prologue == 0 {
		first, later = first.WithoutInput(), later.WithoutInput()
	}
	if s.Memory.Gradients {
		first = later
	}
	return first, later
}

// prologue is the most bytes that the prologue holds. It includes the input if no chain does.
func (s Stage) prologue() int64 {
	if s.Costs.Prologue > 0 && !s.Memory.BatchInput {
		return s.Costs.ProloguePeak + s.Costs.Given
	}
	return s.Costs.ProloguePeak
}
