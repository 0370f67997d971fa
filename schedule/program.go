package schedule

import (
	"fmt"
	"strings"
)

// Phase says which part of a training step a program covers.
type Phase uint8

const (
	// Whole is forward and backward; the loss is computed by the last stage in between.
	Whole Phase = iota
	// ForwardOnly stops when every micro-batch has left the last stage.
	ForwardOnly
	// BackwardOnly begins where ForwardOnly stopped: forward is done, the caller has computed the
	// loss. It contains the recomputations.
	BackwardOnly
)

// String returns the phase's word in the header of a program's text form.
func (p Phase) String() string {
	switch p {
	case Whole:
		return "whole"
	case ForwardOnly:
		return "forward-only"
	case BackwardOnly:
		return "backward-only"
	}
	return fmt.Sprintf("phase(%d)", uint8(p))
}

func (p Phase) forward() bool  { return p == Whole || p == ForwardOnly }
func (p Phase) backward() bool { return p == Whole || p == BackwardOnly }

// Program is what every worker does in one training step. A worker performs its actions one after
// the other, in the order listed, and waits before an action until its dependencies are done (see
// [Graph]). A worker may have nothing to do.
//
// A Program is plain data, and may be wrong: [Check] says whether it can run.
type Program struct {
	Stages       int
	MicroBatches int
	Phase        Phase
	Workers      [][]Action

	// Skips are the pairs of stages, other than neighbours, that a link joins: for each of them and
	// each micro-batch the activation is sent and received, and the gradient back. They are sorted
	// by From and To, each once.
	Skips []Edge

	// Capacity is how many values may wait on a link between neighbours, sent and not yet received:
	// with capacity c a stage starts a send when the one c sends before on the same link has been
	// received. What waits takes memory of the stage that sent it. Zero is any number; Meet is
	// none. Links of skips, and links within a worker, hold any number in any case.
	Capacity int
}

// Meet is the capacity of a link on which nothing waits: a stage that has sent goes on when the
// value was received.
const Meet = -1

// maxForwards bounds stages and skips times micro-batches. Ten thousand stages of a thousand
// micro-batches are below it; beyond lies a slip in a header, which would ask for tens of
// gigabytes.
const maxForwards = 1 << 24

// checkSize checks the numbers of stages, skips between them, and micro-batches.
func checkSize(stages, skips, microBatches int) error {
	switch {
	case stages < 1:
		return fmt.Errorf("%d stages, want at least 1", stages)
	case microBatches < 1:
		return fmt.Errorf("%d micro-batches, want at least 1", microBatches)
	case stages > maxForwards/microBatches:
		return fmt.Errorf("%d stages of %d micro-batches are more than %d forwards", stages,
			microBatches, maxForwards)
	case skips > maxForwards/microBatches-stages:
		return fmt.Errorf("%d stages and %d skips of %d micro-batches are more than %d forwards",
			stages, skips, microBatches, maxForwards)
	}
	return nil
}

// String returns the program's text form, which [Parse] reads back: a header, then one line per
// worker.
//
//	program whole stages=2 micro-batches=2
//	worker 0: 0F0 0F0>1 0F1 0F1>1 1>0B0 0B0 1>0B1 0B1
//	worker 1: 0>1F0 1F0 0>1F1 1F1 1B0 1B0>0 1B1 1B1>0
//
// The header also has skips, and a capacity of the links, if the program has them:
//
//	program whole stages=4 micro-batches=2 skips=0>2,0>3 capacity=1
func (p *Program) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "program %v stages=%d micro-batches=%d", p.Phase, p.Stages, p.MicroBatches)
	for _, o := range headerOptions {
		if text := o.format(p); text != "" {
			b.WriteString(" " + o.name + text)
		}
	}
	b.WriteByte('\n')
	for w, actions := range p.Workers {
		fmt.Fprintf(&b, "worker %d:", w)
		for _, a := range actions {
			b.WriteByte(' ')
			b.WriteString(a.String())
		}
		b.WriteByte('\n')
	}
	return b.String()
}
