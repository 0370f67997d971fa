package schedule

import (
	"fmt"
	"slices"
)

// chunk is consecutive stages of one worker that run as if they were one stage: from <= stage < to.
type chunk struct{ worker, from, to int }

// builder lists the computations of each worker. fill and meet then place the transfers.
type builder struct {
	Config
	chunks  []chunk
	workers [][]Action
}

// build makes the program of a schedule. chunksOf divides the stages into chunks; if their
// placement does not suit the schedule, want describes one that does. write lists the computations.
func build(name string, c Config, chunksOf func(placement []int) (chunks []chunk, want string),
	write func(b *builder)) (*Program, error) {
	p, placement, err := c.emptyProgram()
	if err != nil {
		return nil, fmt.Errorf("schedule: %s: %w", name, err)
	}
	chunks, want := chunksOf(placement)
	if want != "" {
		return nil, fmt.Errorf("schedule: %s: stages are on the workers %v, want %s", name, placement, want)
	}
	b := &builder{c, chunks, make([][]Action, len(p.Workers))}
	write(b)
	p.fill(b.workers)
	p.meet()
	return p, nil
}

// cell is a chunk and a micro-batch that it computes.
type cell struct{ chunk, microBatch int }

// perform appends the computation of a cell. A forward visits the chunk's stages in ascending
// order, a backward in descending order, each after the stage's recomputation if the config asks
// for one. Micro-batches that do not exist are left out.
func (b *builder) perform(kind Kind, c cell) {
	at := b.chunks[c.chunk]
	list := &b.workers[at.worker]
	if c.microBatch >= b.MicroBatches {
		return
	}
	for k := range at.to - at.from {
		s := at.to - 1 - k
		if kind == Forward {
			s = at.from + k
		}
		if kind.gradients() && b.recomputes(s, c.microBatch) {
			*list = append(*list, Action{Recompute, s, c.microBatch, 0})
		}
		*list = append(*list, Action{kind, s, c.microBatch, 0})
	}
}

// alternate appends the computations of a worker: warmup forwards, then a forward and a backward in
// turn, then the remaining backwards. With split each backward is in two parts, the second after
// the first parts of the next lag backwards.
func (b *builder) alternate(forward, backward []cell, warmup int, split bool, lag int) {
	n := len(forward)
	for k := range n + min(n, warmup) {
		if k < n {
			b.perform(Forward, forward[k])
		}
		back := k - min(n, warmup)
		switch {
		case back >= 0 && !split:
			b.perform(Backward, backward[back])
		case back >= 0:
			b.perform(BackwardInput, backward[back])
			if back >= lag {
				b.perform(BackwardWeight, backward[back-lag])
			}
		}
	}
	if split {
		for _, s := range backward[max(0, n-lag):] {
			b.perform(BackwardWeight, s)
		}
	}
}

// blocks makes a chunk of each run of consecutive stages on one worker.
func blocks(placement []int) (chunks []chunk) {
	for s, w := range placement {
		if s > 0 && placement[s-1] == w {
			chunks[len(chunks)-1].to++
		} else {
			chunks = append(chunks, chunk{w, s, s + 1})
		}
	}
	return chunks
}

// oneBlock makes one chunk of each worker's stages, which must be consecutive.
func oneBlock(placement []int) (chunks []chunk, want string) {
	if chunks = blocks(placement); len(chunks) > slices.Max(placement)+1 {
		want = "consecutive stages on a worker"
	}
	return chunks, want
}

// looped makes chunks that go round: chunk c is on the worker of chunk c mod workers.
func looped(placement []int) (chunks []chunk, want string) {
	chunks, workers := blocks(placement), slices.Max(placement)+1
	for at, c := range chunks {
		if c.worker != chunks[at%workers].worker || len(chunks)%workers != 0 {
			want = "as many blocks on each, that go round"
		}
	}
	return chunks, want
}

// folded makes a chunk of each stage. Each worker must have two stages, which go to and fro.
func folded(placement []int) (chunks []chunk, want string) {
	for s, w := range placement {
		if w != placement[len(placement)-1-s] || len(placement) != 2*(slices.Max(placement)+1) {
			want = "two on each, that go to and fro"
		}
	}
	chunks, _ = single(placement)
	return chunks, want
}

func single(placement []int) (chunks []chunk, want string) {
	for s, w := range placement {
		chunks = append(chunks, chunk{w, s, s + 1})
	}
	return chunks, ""
}

// fill gives the program its actions: the computations in their order, with their transfers.
//
// A send directly follows the computation that made its value, and a receive directly precedes the
// computation that uses its value. meet then moves some receives ahead.
func (p *Program) fill(workers [][]Action) {
	for w, computations := range workers {
		list := make([]Action, 0, 3*len(computations))
		for _, a := range computations {
			list = append(p.receives(list, a), a)
			list = p.sends(list, a)
		}
		p.Workers[w] = list
	}
}

// receives appends the receives that a computation needs.
func (p *Program) receives(list []Action, a Action) []Action {
	return p.transfers(list, a, ReceiveActivation, ReceiveGradient)
}

// sends appends the sends of a computation's values.
func (p *Program) sends(list []Action, a Action) []Action {
	return p.transfers(list, a, SendActivation, SendGradient)
}

// transfers appends the transfers of a computation. A forward has transfers of kind activation, in
// ascending order of the other stage. A backward has transfers of kind gradient, in descending
// order. So a stage sends to its neighbour first, which needs the value first.
func (p *Program) transfers(list []Action, a Action, activation, gradient Kind) []Action {
	kind, first := activation, len(list)
	if a.Kind.gradients() {
		kind = gradient
	} else if a.Kind != Forward {
		return list
	}
	add := func(peer int) { list = append(list, Action{kind, a.Stage, a.MicroBatch, peer}) }
	later := kind == SendActivation || kind == ReceiveGradient
	if later && a.Stage < p.Stages-1 {
		add(a.Stage + 1)
	}
	for _, e := range p.Skips {
		if later && e.From == a.Stage {
			add(e.To)
		} else if !later && e.To == a.Stage {
			add(e.From)
		}
	}
	if !later && a.Stage > 0 {
		add(a.Stage - 1)
	}
	if kind == gradient {
		slices.Reverse(list[first:])
	}
	return list
}
