package schedule

import (
	"cmp"
	"fmt"
	"regexp"
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
	// BackwardInput is the first part of a backward in two parts. It computes the gradients of the
	// stage's inputs, for which earlier stages wait.
	BackwardInput
	// BackwardWeight is the second part. It adds to the stage's gradients. No stage waits for it.
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

// kindTexts has the words of each kind and its letter in the text form: F for transfers of
// activations, B for transfers of gradients.
var kindTexts = [...]struct {
	words  string
	letter byte
}{
	{"", '?'},
	Forward:           {"forward", 'F'},
	Recompute:         {"recompute", 'R'},
	Backward:          {"backward", 'B'},
	BackwardInput:     {"backward of the input", 'I'},
	BackwardWeight:    {"backward of the weights", 'W'},
	SendActivation:    {"send activation", 'F'},
	ReceiveActivation: {"receive activation", 'F'},
	SendGradient:      {"send gradient", 'B'},
	ReceiveGradient:   {"receive gradient", 'B'},
	Reduce:            {"gradient reduction", '?'},
}

// String returns the kind in lower-case words.
func (k Kind) String() string {
	if k == 0 || int(k) >= len(kindTexts) {
		return fmt.Sprintf("kind(%d)", uint8(k))
	}
	return kindTexts[k].words
}

func (k Kind) letter() byte { return kindTexts[k%Kind(len(kindTexts))].letter }

// Transfer reports whether actions of the kind move data between stages rather than compute.
func (k Kind) Transfer() bool { return k >= SendActivation && k <= ReceiveGradient }

// Send reports whether actions of the kind put a value on a link.
func (k Kind) Send() bool { return k == SendActivation || k == SendGradient }

// Receive reports whether actions of the kind take a value from a link.
func (k Kind) Receive() bool { return k == ReceiveActivation || k == ReceiveGradient }

// forward reports whether the kind belongs to the forward half of a step, transfers included.
func (k Kind) forward() bool { return k == Forward || k == SendActivation || k == ReceiveActivation }

// gradients reports whether the kind computes the gradients of a stage's inputs.
func (k Kind) gradients() bool { return k == Backward || k == BackwardInput }

// Action is one item of a worker's list. A valid program has no two equal actions.
type Action struct {
	Kind       Kind
	Stage      int // the stage that acts
	MicroBatch int
	Peer       int // the stage at the other end of a transfer; otherwise 0
}

// String returns the action's text form, which [ParseAction] reads back:
//
//	0F2    stage 0, forward of micro-batch 2
//	0R2    stage 0, recomputation of micro-batch 2
//	0B2    stage 0, backward of micro-batch 2
//	0I2    stage 0, first part of a backward: the gradient of the input
//	0W2    stage 0, second part of a backward: the gradients of the weights
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
		return strconv.Itoa(a.Stage) + "RED"
	}
	return fmt.Sprintf("%d%c%d", a.Stage, a.Kind.letter(), a.MicroBatch)
}

// Words describes the action for people: "forward, stage 2, micro-batch 5", "send
// activation, stage 0 to 1, micro-batch 2".
func (a Action) Words() string {
	text := fmt.Sprintf("%v, stage %d", a.Kind, a.Stage)
	switch {
	case a.Kind.Send():
		text += fmt.Sprintf(" to %d", a.Peer)
	case a.Kind.Receive():
		text += fmt.Sprintf(" from %d", a.Peer)
	case a.Kind == Reduce:
		return text
	}
	return fmt.Sprintf("%s, micro-batch %d", text, a.MicroBatch)
}

// Matching returns the other end of a transfer: the receive of a send, or the send of a receive.
func (a Action) Matching() Action {
	kind := a.Kind + 1
	if a.Kind.Receive() {
		kind = a.Kind - 1
	}
	return Action{kind, a.Peer, a.MicroBatch, a.Stage}
}

// distance is how many stages apart the ends of a transfer are.
func (a Action) distance() int { return max(a.Peer-a.Stage, a.Stage-a.Peer) }

var (
	actionForm  = regexp.MustCompile(`^(?:(\d+)>)?(\d+)(?:RED|([FRBIW])(\d+))(?:>(\d+))?$`)
	actionKinds = map[string]Kind{
		"": Reduce, "F": Forward, "R": Recompute, "B": Backward, "I": BackwardInput, "W": BackwardWeight,
	}
)

// ParseAction reads the text form of an action, strictly as [Action.String] writes it. Numbers are
// below 2^31. An activation only moves to a later stage and a gradient only to an earlier one.
func ParseAction(text string) (Action, error) {
	bad := func(reason string) (Action, error) { return Action{}, fmt.Errorf("action %q: %s", text, reason) }
	form := actionForm.FindStringSubmatch(text)
	if form == nil || form[1] != "" && form[5] != "" {
		return bad("want a stage, F, R, B, I or W, and a micro-batch, as in 0F2; or 0F2>1, 0>1F2 or 0RED")
	}
	a, peer, sends := Action{Kind: actionKinds[form[3]]}, form[1]+form[5], form[5] != ""
	for i, into := range []*int{&a.Stage, &a.MicroBatch, &a.Peer} {
		var err error
		if *into, err = parseNumber(cmp.Or([]string{form[2], form[4], peer}[i], "0")); err != nil {
			return bad(err.Error())
		}
	}
	forward := a.Kind == Forward
	switch {
	case peer == "":
		return a, nil
	case !forward && a.Kind != Backward:
		return bad("what is sent and received is F or B")
	case forward != (a.Stage < a.Peer == sends) || a.Stage == a.Peer:
		return bad("an activation moves to a later stage, a gradient to an earlier one")
	}
	a.Kind = map[bool]Kind{true: SendActivation, false: SendGradient}[forward]
	if !sends {
		a.Kind++
	}
	return a, nil
}
