package schedule

import "penstock/internal/arg"

// StageMemory is the most that a stage holds at a time, in micro-batches. The two maxima need not be at the same
// time.
type StageMemory struct {
	// Saved counts micro-batches whose graph is held, with every activation that backward needs: from forward to
	// backward, or from recomputation to backward.
	Saved int
	// Inputs counts micro-batches of which only the stage's input is held, with what came along skips: from forward
	// to recomputation.
	Inputs int
}

// Memory returns what each stage holds at most. It is exact, and needs no clock, because the computations of a stage
// are in one order on one worker. What was received and waits for its computation is not counted, nor what waits on
// links ([Program.Capacity]).
//
// At the start of a [BackwardOnly] program every micro-batch is held already. A [ForwardOnly] program does not say
// what will be recomputed; every micro-batch counts as saved.
//
// Actions of stages and micro-batches that the program does not have are ignored.
func Memory(p *Program) []StageMemory {
	arg.Must(p, "schedule: Memory: the program", "one such as GPipe or Parse makes")
	const (
		none = iota
		input
		saved
	)
	type cell struct{ stage, microBatch int }
	recomputed := make(map[cell]bool)
	for _, actions := range p.Workers {
		for _, a := range actions {
			if a.Kind == Recompute {
				recomputed[cell{a.Stage, a.MicroBatch}] = true
			}
		}
	}

	state := make(map[cell]int)
	now := make([]StageMemory, p.Stages)
	most := make([]StageMemory, p.Stages)
	hold := func(c cell, next int) {
		n := &now[c.stage]
		switch state[c] {
		case input:
			n.Inputs--
		case saved:
			n.Saved--
		}
		switch next {
		case input:
			n.Inputs++
		case saved:
			n.Saved++
		}
		state[c] = next
		most[c.stage].Saved = max(most[c.stage].Saved, n.Saved)
		most[c.stage].Inputs = max(most[c.stage].Inputs, n.Inputs)
	}
	forward := func(c cell) {
		if recomputed[c] {
			hold(c, input)
		} else {
			hold(c, saved)
		}
	}
	if p.Phase == BackwardOnly {
		for s := range p.Stages {
			for i := range p.MicroBatches {
				forward(cell{s, i})
			}
		}
	}
	for _, actions := range p.Workers {
		for _, a := range actions {
			c := cell{a.Stage, a.MicroBatch}
			if c.stage < 0 || c.stage >= p.Stages || c.microBatch < 0 || c.microBatch >= p.MicroBatches {
				continue
			}
			switch a.Kind {
			case Forward:
				forward(c)
			case Recompute:
				hold(c, saved)
			case Backward:
				hold(c, none)
			}
		}
	}
	return most
}
