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
	// BackwardOnly begins where ForwardOnly stopped: forward is done, the caller has computed the loss. It contains
	// the recomputations.
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

// Program is what every worker does in one training step. A worker performs its actions one after the other, in the
// order listed, and waits before an action until those that it depends on are done (see [Graph]). A worker may have
// nothing to do.
//
// A Program is plain data, and may be wrong: [Check] says whether it can run.
type Program struct {
	Stages       int
	MicroBatches int
	Phase        Phase
	Workers      [][]Action

	// Skips are the pairs of stages, other than neighbours, between which there are transfers: for each of them and
	// each micro-batch one of the activation and one of the gradient. They are sorted by From and To, each once.
	Skips []Edge

	// LateRecompute says that a recomputation waits for the gradients of its micro-batch, if the stage receives any,
	// even where their transfers are on another worker. Otherwise nothing holds it back but its place in the list.
	LateRecompute bool

	// Unbuffered says that a stage does not go on while the stage after has still to take over its last output, or the stage before its last gradient: nothing waits in its memory beside what it
	// works on. What skips carry may wait.
	Unbuffered bool
}

// unbufferedWord is the header's word for an unbuffered program.
const unbufferedWord = "unbuffered"

// lateWord is the header's word for a program with late recomputation.
const lateWord = "late-recompute"

// maxCells bounds stages and skips times micro-batches. Pipelines have up to some hundred stages and some thousand
// micro-batches at the very most; beyond that lies a slip in a header, which would ask for gigabytes.
const maxCells = 1 << 20

// checkSize says what is wrong with a number of stages, skips between them, and micro-batches.
func checkSize(stages, skips, microBatches int) error {
	switch {
	case stages < 1:
		return fmt.Errorf("%d stages, want at least 1", stages)
	case microBatches < 1:
		return fmt.Errorf("%d micro-batches, want at least 1", microBatches)
	case stages > maxCells/microBatches:
		return fmt.Errorf("%d stages of %d micro-batches are more than %d cells", stages, microBatches, maxCells)
	case skips > maxCells/microBatches-stages:
		return fmt.Errorf("%d stages and %d skips of %d micro-batches are more than %d cells", stages, skips, microBatches, maxCells)
	}
	return nil
}

// String returns the program's text form, which [Parse] reads back: a header, then one line per worker.
//
//	program whole stages=2 micro-batches=2
//	worker 0: 0F0 0F1 1>0B0 0B0 1>0B1 0B1
//	worker 1: 0>1F0 1F0 0>1F1 1F1 1B0 1B1
//
// Skips, late recomputation and the lack of buffers are added to the header where there are any:
//
//	program whole stages=4 micro-batches=2 skips=0>2,0>3 late-recompute unbuffered
func (p *Program) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "program %v stages=%d micro-batches=%d", p.Phase, p.Stages, p.MicroBatches)
	if len(p.Skips) > 0 {
		b.WriteString(" " + skipsWord(p.Skips))
	}
	if p.LateRecompute {
		b.WriteString(" " + lateWord)
	}
	if p.Unbuffered {
		b.WriteString(" " + unbufferedWord)
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
