package solver

import (
	"cmp"
	"context"
	"math"
	"slices"
)

// longChain is the number of layers from which on chains are solved by beam search. For shorter
// ones tables find better plans under low limits, by up to 0.5 %, in the same time.
const longChain = 251

// newBeam prepares the search for plans of a long chain. It returns ctx.Err() when ctx ends first.
func newBeam(ctx context.Context, t *terms) (*beam, error) {
	c, err := newCells(ctx, t, cellsOfChain)
	if err != nil {
		return nil, err
	}
	r, err := newRelaxation(ctx, c)
	return &beam{relaxation: r, width: max(widthTimesLayers/t.n, leastWidth)}, err
}

// The width of a beam is widthTimesLayers divided by the layers, and at least leastWidth, so that
// the time of long chains grows about linearly. From a width of 64 to one of 256, plans of 250
// layers gain 0.1 %, and plans of 500 layers 0.02 %.
const widthTimesLayers, leastWidth = 100_000, 32

// beam searches for a plan of an interval from its first layer to its last. At each layer it
// decides whether to save the layer, or up to which input to keep this one. Of the ways that lead
// to a layer it continues with the best few, by their time so far and the relaxation's estimate of
// the rest.
type beam struct {
	*relaxation
	width int
}

// way leads to a layer with m bytes left.
type way struct {
	m     int64
	time  float64
	total float64 // about the time to the end of the interval, too
	// The last step began at x(first) after the way before. It saved that layer, or kept x(first).
	before *way
	first  int
	save   bool
}

// write adds a plan of (i, l, m), m >= least(i, l), to p.
func (b *beam) write(p *path, i, l int, m int64) {
	if _, all := b.of(i, l); m >= all {
		p.all(i, l)
		return
	}
	last, at := b.search(i, l, m)
	var steps []*way // the last one is where nothing more is computed again
	for w := last; w != nil; w = w.before {
		steps = append(steps, w)
	}
	slices.Reverse(steps)
	b.emit(p, steps, at, l)
}

// emit writes steps. The last of them leads to layer at, from which on nothing is computed again.
func (b *beam) emit(p *path, steps []*way, at, l int) {
	if len(steps) == 1 {
		p.all(at, l)
		return
	}
	step, next := steps[1], at
	if len(steps) > 2 {
		next = steps[2].first
	}
	if step.save {
		p.save(step.first, l)
		b.emit(p, steps[1:], at, l)
		p.backward(step.first)
		return
	}
	p.compute(step.first, next, l)
	b.emit(p, steps[1:], at, l)
	p.release(step.first, next)
	b.write(p, step.first, next-1, steps[0].m-p.t.weights(next, l))
}

// search returns the best way to a layer from which on nothing need be computed again, and that
// layer. m is below the bytes for which that is the first layer.
func (b *beam) search(first, l int, m int64) (best *way, at int) {
	t := b.t
	ways := make([][]*way, l-first+1)
	ways[0] = []*way{{m: m}}
	least := math.Inf(1)
	add := func(i int, w way) {
		fits, all := b.of(i, l)
		switch {
		case w.m < fits:
		case w.m >= all:
			if w.time < least {
				least, best, at = w.time, &w, i
			}
		default:
			if w.total = w.time + b.at(i, l, w.m); w.total < least {
				ways[i-first] = append(ways[i-first], &w)
			}
		}
	}
	for i := first; i < l; i++ {
		for _, w := range b.best(ways[i-first], least) {
			if w.m >= t.saving(i, l) {
				add(i+1, way{m: w.m - t.saved[i], time: w.time, before: w, first: i, save: true})
			}
			for j := i + 1; j <= l && w.m >= t.sweeping(i, j, l); j = b.after(i, j) {
				time := w.time + t.nograd[j] - t.nograd[i]
				if time >= least {
					break
				}
				left := w.m - t.weights(j, l)
				if fits := b.least(i, j-1); left >= fits {
					add(j, way{m: w.m - t.kept(i, j), time: time + b.at(i, j-1, left), before: w, first: i})
				}
			}
		}
		ways[i-first] = nil
	}
	return best, at
}

// best is the ways to continue with. No other way to the same layer has more bytes and less time,
// and none is estimated above least.
func (b *beam) best(ways []*way, least float64) []*way {
	slices.SortFunc(ways, func(v, w *way) int { return cmp.Or(cmp.Compare(v.time, w.time), cmp.Compare(w.m, v.m)) })
	kept := ways[:0]
	most := int64(-1)
	for _, w := range ways {
		if w.m > most && w.total < least {
			kept, most = append(kept, w), w.m
		}
	}
	if len(kept) > b.width {
		slices.SortStableFunc(kept, func(v, w *way) int { return cmp.Compare(v.total, w.total) })
		kept = kept[:b.width]
	}
	return kept
}
