package plan

import (
	"slices"

	"penstock.example/remat"
	"penstock.example/schedule"
)

// Problem is a step to plan.
type Problem struct {
	Devices      []ProblemDevice // by worker of the program
	Stages       []Stage
	MicroBatches int    // 1 or more
	Skips        []Skip // values that move directly between stages
	Ties         []Tie  // parameters that several stages use
	// Larger is how many micro-batches, the first ones, have the most rows; 0 is all. The costs of the
	// others are Stage.Fewer.
	Larger   int
	Schedule schedule.Generator // makes the program; nil is schedule.GPipe
	Links    schedule.Links     // the costs of transfers
	Meet     bool               // nothing may wait on links between neighbours, whatever the limits
	// First takes the first plan within the limits, and not the one with the shortest step.
	First     bool
	curves    map[string]*curve // by key; other problems with the same costs share them
	sameTimes bool              // all operations take the same time
}

// ProblemDevice is a device of a problem. Limit and Live matter if its stages have the policy Optimal.
type ProblemDevice struct {
	Name  string // such as "cpu:0"
	Limit int64  // the most bytes that it may hold; 0 is none
	Live  int64  // held between steps: existing parameters, buffers, gradients, optimizer state; the batch
}

// Stage is a stage of a problem.
type Stage struct {
	Device int // an index into Devices
	Layers int // of the model
	Policy Policy
	Costs  StageCosts  // for Optimal alone
	Fewer  *StageCosts // bytes of micro-batches with fewer rows, without times; nil if all have the same
	Memory Memory      // for Optimal alone
}

// StageCosts is the bytes and times of a stage for one micro-batch. Package profile measures them.
type StageCosts struct {
	Footprint *remat.Footprint
	Times     []remat.UnitTimes // by unit; those of the prologue do not count
	Loss      float64           // microseconds of a loss after the units
	Units     []int             // layers in each; a loss that ends the last stage counts as one
	Prologue  int               // first units that have no backward, and run once
	Spread    float64           // see remat.Chain
}

// Memory is the bytes that a device holds for a stage during a step in any plan, beyond its live bytes.
type Memory struct {
	Unplaced int64 // parameters and buffers that do not exist yet
	State    int64 // optimizer state that does not exist yet
	Outputs  int64 // the whole batch's outputs and their gradients, if the caller computes the loss
	// Gradients says that all parameters have gradients. If only some have, theirs count twice.
	Gradients bool
	// InputGradient is the gradient of the batch's input, which every backward of the first stage makes
	// in full. The first one stays. If one exists before (InputHasGradient), all are added to it.
	InputGradient    int64
	InputHasGradient bool
	BatchInput       bool // the stage's input is a view of the batch, which Live includes
	// Reduction is the most bytes of another replica's gradients that the stage holds at a time. They
	// may exist from the program's reduction to the end of the step, as the device continues meanwhile.
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
	return err == nil && slices.ContainsFunc(slices.Concat(program.Workers...),
		func(a schedule.Action) bool { return a.Kind == schedule.BackwardInput })
}

// Chain returns the stage as a chain of units after the prologue, with backwards of a kind.
func (c StageCosts) Chain(kind remat.BackwardKind) remat.Chain {
	return c.Footprint.Chain(c.Times, c.Loss, c.Prologue, kind)
}

// Skip is a skip between two stages. Places are indices into the stages' parcels.
type Skip struct {
	From, To           int
	FromPlace, ToPlace int
	Pops               int // by stage To, which sends back as many gradients

	first int // index of the first of these gradients among all that From receives
}

// Tie is a parameter that two stages use, and none between them. The later stage sends its gradient to
// the earlier one.
type Tie struct {
	Earlier, Later           int
	EarlierPlace, LaterPlace int
}
