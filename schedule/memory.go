package schedule

import "penstock.example/internal/arg"

// StageMemory is the most that a stage, or all stages of a worker together, hold at a time, in
// micro-batches of a stage. The maxima need not be at the same time.
type StageMemory struct {
	// Saved counts micro-batches whose graph is held, with every activation that backward needs:
	// from forward to backward, or from recomputation to backward. Where backward has two parts
	// this is to the end of the second.
	Saved int
	// Whole counts those of Saved whose backward has not ended its first part. Of the others only
	// what the gradients of the weights need is held. Where no backward has two parts, Whole is
	// Saved.
	Whole int
	// Inputs counts micro-batches of which only the stage's input is held, with what came along
	// skips: from forward to recomputation.
	Inputs int
}

// Memory returns what each stage holds at most. It is exact, and needs no clock, because the
// computations of a stage are in one order on one worker. What was received and waits for its
// computation is not counted, nor what waits on links ([Program.Capacity]).
//
// At the start of a [BackwardOnly] program every micro-batch is held already. A [ForwardOnly]
// program does not say what will be recomputed; every micro-batch counts as saved.
//
// Actions of stages and micro-batches that the program does not have are ignored. Of a program
// whose numbers of stages and micro-batches make no sense nothing is returned.
func Memory(p *Program) []StageMemory {
	arg.Must(p, "schedule: Memory: the program", "one such as GPipe or Parse makes")
	return p.held(p.Stages, func(_, stage int) int { return stage })
}

// WorkerMemory returns what the stages of each worker hold together at most; see [Memory].
func WorkerMemory(p *Program) []StageMemory {
	arg.Must(p, "schedule: WorkerMemory: the program", "one such as GPipe or Parse makes")
	return p.held(len(p.Workers), func(worker, _ int) int { return worker })
}

// hold says what is held of a micro-batch on a stage.
type hold uint8

const (
	nothing hold = iota
	input        // what was received: the graph is made later
	whole        // the graph
	weights      // what is left of the graph for the gradients of the weights
)

// count adds n micro-batches that are held in one way.
func (m *StageMemory) count(h hold, n int) {
	switch h {
	case input:
		m.Inputs += n
	case whole:
		m.Saved += n
		m.Whole += n
	case weights:
		m.Saved += n
	}
}

// held counts what is held at most by each of so many holders, of which holder names that of a
// stage on a worker.
func (p *Program) held(holders int, holder func(worker, stage int) int) []StageMemory {
	if checkSize(p.Stages, 0, p.MicroBatches) != nil {
		return nil
	}
	now := make([]StageMemory, holders)
	most := make([]StageMemory, holders)
	p.follow(func(w, stage int, was, is hold) {
		by := holder(w, stage)
		n, m := &now[by], &most[by]
		n.count(was, -1)
		n.count(is, 1)
		m.Saved, m.Whole, m.Inputs = max(m.Saved, n.Saved), max(m.Whole, n.Whole), max(m.Inputs, n.Inputs)
	})
	return most
}

// follow goes through the actions, worker after worker, and says how what a stage holds of a
// micro-batch changes.
func (p *Program) follow(change func(worker, stage int, was, is hold)) {
	state := make([]hold, p.Stages*p.MicroBatches)
	recomputed := make([]bool, len(state))
	at := func(a Action) int {
		if a.Stage < 0 || a.Stage >= p.Stages || a.MicroBatch < 0 || a.MicroBatch >= p.MicroBatches {
			return -1
		}
		return a.Stage*p.MicroBatches + a.MicroBatch
	}
	for _, actions := range p.Workers {
		for _, a := range actions {
			if id := at(a); id >= 0 && a.Kind == Recompute {
				recomputed[id] = true
			}
		}
	}
	become := func(w, stage, id int, is hold) {
		change(w, stage, state[id], is)
		state[id] = is
	}
	forward := func(w, stage, id int) {
		if recomputed[id] {
			become(w, stage, id, input)
		} else {
			become(w, stage, id, whole)
		}
	}
	if p.Phase == BackwardOnly {
		for w, actions := range p.Workers {
			for _, a := range actions {
				if id := at(a); id >= 0 && state[id] == nothing {
					forward(w, a.Stage, id)
				}
			}
		}
	}
	for w, actions := range p.Workers {
		for _, a := range actions {
			id := at(a)
			if id < 0 {
				continue
			}
			switch a.Kind {
			case Forward:
				forward(w, a.Stage, id)
			case Recompute:
				become(w, a.Stage, id, whole)
			case BackwardInput:
				become(w, a.Stage, id, weights)
			case Backward, BackwardWeight:
				become(w, a.Stage, id, nothing)
			}
		}
	}
}
