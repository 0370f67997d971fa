package schedule

import "fmt"

// chunk is consecutive stages of one worker that run one after the other, as if they were one
// stage.
type chunk struct {
	worker   int
	from, to int // stages from from up to, and without, to
}

// builder lists the computations of a schedule that is described in chunks.
type builder struct {
	config Config
	chunks []chunk
	order  order
}

// build makes the program of a schedule from a config. The stages are divided into chunks by split,
// and write appends the computations of all chunks to their workers' lists.
func build(name string, c Config, split func(placement []int) ([]chunk, error),
	write func(b *builder)) (*Program, error) {
	p, placement, err := c.program()
	b := &builder{config: c}
	if err == nil {
		b.chunks, err = split(placement)
	}
	if err != nil {
		return nil, fmt.Errorf("schedule: %s: %w", name, err)
	}
	b.order = make(order, len(p.Workers))
	write(b)
	p.fill(b.order)
	p.meet(c.time())
	return p, nil
}

func (b *builder) add(c int, a Action) {
	w := b.chunks[c].worker
	b.order[w] = append(b.order[w], a)
}

// forward appends the forward of a chunk on a micro-batch.
func (b *builder) forward(c, i int) {
	for s := b.chunks[c].from; s < b.chunks[c].to; s++ {
		b.add(c, Action{Forward, s, i, 0})
	}
}

// backward appends the backward of a chunk on a micro-batch.
func (b *builder) backward(c, i int) { b.gradients(Backward, c, i) }

// gradients appends actions that need the gradient of the chunk's output, after the recomputation
// of each stage, if the config asks for one.
func (b *builder) gradients(kind Kind, c, i int) {
	for s := b.chunks[c].to - 1; s >= b.chunks[c].from; s-- {
		if b.config.recomputes(s, i) {
			b.add(c, Action{Recompute, s, i, 0})
		}
		b.add(c, Action{kind, s, i, 0})
	}
}

// weight appends the part of a backward that makes the gradients of the chunk's weights.
func (b *builder) weight(c, i int) {
	for s := b.chunks[c].to - 1; s >= b.chunks[c].from; s-- {
		b.add(c, Action{BackwardWeight, s, i, 0})
	}
}

// step is a computation of a chunk: its forward, its backward, or a part of that.
type step struct {
	kind              Kind
	chunk, microBatch int
}

// perform appends a step.
func (b *builder) perform(s step) {
	switch s.kind {
	case Forward:
		b.forward(s.chunk, s.microBatch)
	case BackwardWeight:
		b.weight(s.chunk, s.microBatch)
	default:
		b.gradients(s.kind, s.chunk, s.microBatch)
	}
}
