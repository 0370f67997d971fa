package schedule

import "fmt"

// Kind says what an action does. The zero Kind is none.
type Kind uint8

const (
	// Forward runs a stage on a micro-batch. Where the cell is recomputed later it keeps only the stage's input.
	Forward Kind = iota + 1
	// Recompute runs the stage's forward again, this time keeping what backward needs.
	Recompute
	// Backward runs a stage's backward and adds to its gradients.
	Backward
	// Activation moves a stage's output to a later stage.
	Activation
	// Gradient moves the gradient of a stage's input back to the stage that the input came from.
	Gradient
)

// String returns the kind as one lower-case word.
func (k Kind) String() string {
	switch k {
	case Forward:
		return "forward"
	case Recompute:
		return "recompute"
	case Backward:
		return "backward"
	case Activation:
		return "activation"
	case Gradient:
		return "gradient"
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Transfer reports whether actions of the kind move data between stages rather than compute.
func (k Kind) Transfer() bool { return k == Activation || k == Gradient }

// letter is the kind's letter in the text form; a transfer has the letter of the direction it belongs to.
func (k Kind) letter() byte {
	switch k {
	case Forward, Activation:
		return 'F'
	case Recompute:
		return 'R'
	case Backward, Gradient:
		return 'B'
	}
	return '?'
}

// Action is one step of one worker. Actions are comparable: within a program, equal means the same step.
type Action struct {
	Kind       Kind
	Stage      int // the stage that acts; for a transfer, the stage that receives
	MicroBatch int
	Source     int // the stage that sends; zero for what is not a transfer
}

// String returns the action's text form, which [ParseAction] reads back:
//
//	0F2    stage 0, forward of micro-batch 2
//	0R2    stage 0, recomputation of micro-batch 2
//	0B2    stage 0, backward of micro-batch 2
//	0>1F2  the activation of micro-batch 2 moves from stage 0 to stage 1
//	1>0B2  the gradient of micro-batch 2 moves from stage 1 to stage 0
//
// A transfer is performed by the worker of the stage that receives, or by that worker's copy worker.
func (a Action) String() string {
	if a.Kind.Transfer() {
		return fmt.Sprintf("%d>%d%c%d", a.Source, a.Stage, a.Kind.letter(), a.MicroBatch)
	}
	return fmt.Sprintf("%d%c%d", a.Stage, a.Kind.letter(), a.MicroBatch)
}

// distance is the number of stages that a transfer passes, its own included: 1 between neighbours.
func (a Action) distance() int { return max(a.Source-a.Stage, a.Stage-a.Source) }
