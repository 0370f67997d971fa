package schedule

import (
	"fmt"
	"slices"
)

// chunk is consecutive stages of one worker that run one after the other, as if they were one
// stage: stages from from up to, and without, to.
type chunk struct{ worker, from, to int }

// builder lists the computations of each worker: forwards, recomputations, backwards and their
// parts. The places of sends and receives follow from them.
type builder struct {
	Config
	chunks  []chunk
	workers [][]Action
}

// build makes the program of a schedule. split divides the stages into chunks, and write appends
// the computations of all chunks to their workers' lists.
func build(name string, c Config, split func(placement []int) ([]chunk, error),
	write func(b *builder)) (*Program, error) {
	p, placement, err := c.program()
	b := &builder{Config: c}
	if err == nil {
		b.chunks, err = split(placement)
	}
	if err != nil {
		return nil, fmt.Errorf("schedule: %s: %w", name, err)
	}
	b.workers = make([][]Action, len(p.Workers))
	write(b)
	p.fill(b.workers)
	p.meet()
	return p, nil
}

// perform appends a computation of a chunk: its stages upwards if it is a forward, otherwise
// downwards, each after its recomputation if the config asks for one.
func (b *builder) perform(kind Kind, c, microBatch int) {
	at := b.chunks[c]
	for k := range at.to - at.from {
		s := at.to - 1 - k
		if kind == Forward {
			s = at.from + k
		}
		if kind.gradients() && b.recomputes(s, microBatch) {
			b.workers[at.worker] = append(b.workers[at.worker], Action{Recompute, s, microBatch, 0})
		}
		b.workers[at.worker] = append(b.workers[at.worker], Action{kind, s, microBatch, 0})
	}
}

// step is a chunk's computation on a micro-batch.
type step struct{ chunk, microBatch int }

// alternate appends the computations of a worker: warmup forwards, then a forward and a backward in
// turn, then the backwards that are left. If backwards are in two parts, the gradients of the
// weights follow lag backwards behind the gradients of the inputs.
func (b *builder) alternate(forward, backward []step, warmup int, split bool, lag int) {
	n := len(forward)
	for k := range n + min(n, warmup) {
		if k < n {
			b.perform(Forward, forward[k].chunk, forward[k].microBatch)
		}
		back := k - min(n, warmup)
		switch {
		case back >= 0 && !split:
			b.perform(Backward, backward[back].chunk, backward[back].microBatch)
		case back >= 0:
			b.perform(BackwardInput, backward[back].chunk, backward[back].microBatch)
			if back >= lag {
				b.perform(BackwardWeight, backward[back-lag].chunk, backward[back-lag].microBatch)
			}
		}
	}
	if split {
		for _, s := range backward[max(0, n-lag):] {
			b.perform(BackwardWeight, s.chunk, s.microBatch)
		}
	}
}

// blocks divides stages into chunks of consecutive stages of a worker.
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

// one divides stages into one chunk for each worker. All stages of a worker must be consecutive.
func one(placement []int) ([]chunk, error) {
	chunks := blocks(placement)
	if len(chunks) > slices.Max(placement)+1 {
		return nil, fmt.Errorf("stages are on the workers %v, want consecutive stages on a worker", placement)
	}
	return chunks, nil
}

// looped divides stages into chunks that go round: chunk c is on the worker of chunk c mod workers.
func looped(placement []int) ([]chunk, error) {
	chunks, workers := blocks(placement), slices.Max(placement)+1
	for at, c := range chunks {
		if c.worker != chunks[at%workers].worker || len(chunks)%workers != 0 {
			return nil, fmt.Errorf("stages are on the workers %v, want as many blocks on each, that go round",
				placement)
		}
	}
	return chunks, nil
}

// folded divides stages into two chunks of one stage for each worker, that go to and fro.
func folded(placement []int) ([]chunk, error) {
	for s, w := range placement {
		if w != placement[len(placement)-1-s] || len(placement) != 2*(slices.Max(placement)+1) {
			return nil, fmt.Errorf("stages are on the workers %v, want two on each, that go to and fro",
				placement)
		}
	}
	return single(placement), nil
}

// single divides stages into chunks of one.
func single(placement []int) (chunks []chunk) {
	for s, w := range placement {
		chunks = append(chunks, chunk{w, s, s + 1})
	}
	return chunks
}

// fill gives the program its actions: the computations in their order, with their transfers.
//
// A send directly follows the computation that made its value. A receive stands directly before the
// computation that uses its value. Where workers would wait for each other on links that meet, a
// receive stands earlier; see meet.
func (p *Program) fill(workers [][]Action) {
	skips := fanOf(p.Skips)
	for w, computations := range workers {
		list := make([]Action, 0, 3*len(computations))
		for _, a := range computations {
			list = p.receives(list, skips, a)
			list = append(list, a)
			list = p.sends(list, skips, a)
		}
		p.Workers[w] = list
	}
}

// receives appends the receives that a computation needs, from afar first, as they can start first.
func (p *Program) receives(list []Action, skips fan, a Action) []Action {
	switch {
	case a.Kind == Forward:
		for _, from := range skips.from[a.Stage] {
			list = append(list, Action{ReceiveActivation, a.Stage, a.MicroBatch, from})
		}
		if a.Stage > 0 {
			list = append(list, Action{ReceiveActivation, a.Stage, a.MicroBatch, a.Stage - 1})
		}
	case a.Kind.gradients():
		for _, to := range slices.Backward(skips.to[a.Stage]) {
			list = append(list, Action{ReceiveGradient, a.Stage, a.MicroBatch, to})
		}
		if a.Stage < p.Stages-1 {
			list = append(list, Action{ReceiveGradient, a.Stage, a.MicroBatch, a.Stage + 1})
		}
	}
	return list
}

// sends appends the sends of what a computation makes, to the neighbour first, which wants it first.
func (p *Program) sends(list []Action, skips fan, a Action) []Action {
	switch {
	case a.Kind == Forward:
		if a.Stage < p.Stages-1 {
			list = append(list, Action{SendActivation, a.Stage, a.MicroBatch, a.Stage + 1})
		}
		for _, to := range skips.to[a.Stage] {
			list = append(list, Action{SendActivation, a.Stage, a.MicroBatch, to})
		}
	case a.Kind.gradients():
		if a.Stage > 0 {
			list = append(list, Action{SendGradient, a.Stage, a.MicroBatch, a.Stage - 1})
		}
		for _, from := range slices.Backward(skips.from[a.Stage]) {
			list = append(list, Action{SendGradient, a.Stage, a.MicroBatch, from})
		}
	}
	return list
}
