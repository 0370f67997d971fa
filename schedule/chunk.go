package schedule

import "fmt"

// chunk is consecutive stages of one worker that run one after the other, as if they were one stage.
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

// build makes the program of a schedule from a config. The stages are divided into chunks by split, and write appends
// the computations of all chunks to their workers' lists.
func build(name string, c Config, split func(placement []int) ([]chunk, error), write func(b *builder)) (*Program, error) {
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
	p.meet()
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

// backward appends the backward of a chunk on a micro-batch, and before it on each stage the recomputation, if there is
// one.
func (b *builder) backward(c, i int) { b.gradients(Backward, c, i) }

func (b *builder) gradients(kind Kind, c, i int) {
	for s := b.chunks[c].to - 1; s >= b.chunks[c].from; s-- {
		if b.config.recomputes(s, i) {
			b.add(c, Action{Recompute, s, i, 0})
		}
		b.add(c, Action{kind, s, i, 0})
	}
}

// one returns one chunk for each worker. All stages of a worker must be consecutive.
func one(placement []int) ([]chunk, error) {
	var chunks []chunk
	last := map[int]int{} // by worker: its last stage
	for s, w := range placement {
		before, again := last[w]
		last[w] = s
		switch {
		case !again:
			chunks = append(chunks, chunk{w, s, s + 1})
		case before == s-1:
			chunks[len(chunks)-1].to++
		default:
			return nil, fmt.Errorf("worker %d has the stages %d and %d and none between them, want consecutive stages on a worker", w, before, s)
		}
	}
	return chunks, nil
}
