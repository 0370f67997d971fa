package schedule

import (
	"fmt"
	"strconv"
)

// Kind is a kind of action. The zero Kind is none.
type Kind uint8

const (
	// Forward runs a stage on a micro-batch. If the micro-batch is recomputed later, it keeps only
	// the stage's input.
	Forward Kind = iota + 1
	// Recompute runs the stage's forward again, and keeps the tensors that backward needs.
	Recompute
	// Backward runs a stage's backward and adds to its gradients.
	Backward
	// BackwardInput is the first part of a backward in two parts: the gradients of the stage's
	// inputs, which earlier stages wait for.
	BackwardInput
	// BackwardWeight is the second part: it adds to the stage's gradients. Nobody waits for it.
	BackwardWeight
	// SendActivation puts a stage's output on the link to a later stage.
	SendActivation
	// ReceiveActivation takes the output of an earlier stage from its link.
	ReceiveActivation
	// SendGradient puts the gradient of a received value on the link back to the earlier stage.
	SendGradient
	// ReceiveGradient takes the gradient of a sent value from the link to the later stage.
	ReceiveGradient
	// Reduce sums the gradients of a stage over the replicas of the pipeline. It is one action for
	// all micro-batches, with MicroBatch 0. It continues during the next actions of its worker, and
	// only the end of the step waits for it.
	Reduce
)

// String returns the kind in lower-case words.
func (k Kind) String() string {
	switch k {
	case Forward:
		return "forward"
	case Recompute:
		return "recompute"
	case Backward:
		return "backward"
	case BackwardInput:
		return "backward of the input"
	case BackwardWeight:
		return "backward of the weights"
	case SendActivation:
		return "send activation"
	case ReceiveActivation:
		return "receive activation"
	case SendGradient:
		return "send gradient"
	case ReceiveGradient:
		return "receive gradient"
	case Reduce:
		return "gradient reduction"
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Transfer reports whether actions of the kind move data between stages rather than compute.
func (k Kind) Transfer() bool { return k >= SendActivation && k <= ReceiveGradient }

// Send reports whether actions of the kind put something on a link.
func (k Kind) Send() bool { return k == SendActivation || k == SendGradient }

// Receive reports whether actions of the kind take something from a link.
func (k Kind) Receive() bool { return k == ReceiveActivation || k == ReceiveGradient }

// forward reports whether actions of the kind belong to the forward half of a step.
func (k Kind) forward() bool { return k == Forward || k == SendActivation || k == ReceiveActivation }

// gradients reports whether actions of the kind make what [SendGradient] sends.
func (k Kind) gradients() bool { return k == Backward || k == BackwardInput }

// letter is the kind's letter in the text form; a transfer has the letter of the direction it
// belongs to.
func (k Kind) letter() byte {
	switch k {
	case Forward, SendActivation, ReceiveActivation:
		return 'F'
	case Recompute:
		return 'R'
	case Backward, SendGradient, ReceiveGradient:
		return 'B'
	case BackwardInput:
		return 'I'
	case BackwardWeight:
		return 'W'
	}
	return '?'
}

// Action is one step of one worker. Actions are comparable: within a program, equal means the same
// step.
type Action struct {
	Kind       Kind
	Stage      int // the stage that acts
	MicroBatch int
	Peer       int // the stage at the other end of a transfer; zero for what is none
}

// String returns the action's text form, which [ParseAction] reads back:
//
//	0F2    stage 0, forward of micro-batch 2
//	0R2    stage 0, recomputation of micro-batch 2
//	0B2    stage 0, backward of micro-batch 2
//	0I2    stage 0, the first part of it: the gradient of the input
//	0W2    stage 0, the second part: the gradients of the weights
//	0F2>1  stage 0 sends its activation of micro-batch 2 to stage 1
//	0>1F2  stage 1 receives the activation of micro-batch 2 from stage 0
//	1B2>0  stage 1 sends the gradient of micro-batch 2 to stage 0
//	1>0B2  stage 0 receives the gradient of micro-batch 2 from stage 1
//	0RED   stage 0, the reduction of its gradients over replicas
func (a Action) String() string {
	switch {
	case a.Kind.Send():
		return fmt.Sprintf("%d%c%d>%d", a.Stage, a.Kind.letter(), a.MicroBatch, a.Peer)
	case a.Kind.Receive():
		return fmt.Sprintf("%d>%d%c%d", a.Peer, a.Stage, a.Kind.letter(), a.MicroBatch)
	case a.Kind == Reduce:
		return strconv.Itoa(a.Stage) + reduceWord
	}
	return fmt.Sprintf("%d%c%d", a.Stage, a.Kind.letter(), a.MicroBatch)
}

// reduceWord is the text form of a reduction after its stage.
const reduceWord = "RED"

// Words describes the action for people: "forward, stage 2, micro-batch 5", "send
// activation, stage 0 to 1, micro-batch 2".
func (a Action) Words() string {
	where := strconv.Itoa(a.Stage)
	switch {
	case a.Kind.Send():
		where += " to " + strconv.Itoa(a.Peer)
	case a.Kind.Receive():
		where += " from " + strconv.Itoa(a.Peer)
	case a.Kind == Reduce:
		return fmt.Sprintf("%v, stage %s", a.Kind, where)
	}
	return fmt.Sprintf("%v, stage %s, micro-batch %d", a.Kind, where, a.MicroBatch)
}

// Matching returns the other end of a transfer: the receive of a send, or the send of a receive.
func (a Action) Matching() Action {
	kind := a.Kind + 1
	if a.Kind.Receive() {
		kind = a.Kind - 1
	}
	return Action{kind, a.Peer, a.MicroBatch, a.Stage}
}

// distance is the number of stages that a transfer passes, its own included: 1 between neighbours.
func (a Action) distance() int { return max(a.Peer-a.Stage, a.Stage-a.Peer) }
