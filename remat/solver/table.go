package solver

import (
	"context"
	"fmt"
	"math"
	"slices"

	"penstock.example/internal/arg"
	"penstock.example/remat"
)

// Table answers for every limit up to a greatest one with a plan. The plan is the best if the table
// is exact, and otherwise as good as [Options].Slots permits. Methods may be called concurrently.
type Table struct {
	t     *terms
	b     *bounds
	steps *steps // nil if the table is not exact
	// grids are achievable. Each is for a quarter of the bytes of the one before, so that small
	// limits and small intervals have enough slots. All but the first have half the slots, which
	// are still twice as fine.
	grids []*grid
	// beam is what long chains have instead.
	beam *beam
}

// NewTable makes the table of a chain for limits up to most bytes. If most is 0, or above the peak
// of a plan that recomputes nothing, it is for all limits. Of the options, Steps and Slots count.
// The error is a [*remat.ChainError], or ctx.Err() when ctx ends first.
func NewTable(ctx context.Context, c remat.Chain, most int64, o Options) (*Table, error) {
	if err := arg.Context(ctx, "remat"); err != nil {
		return nil, err
	}
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := c.Check(); err != nil {
		return nil, err
	}
	if most < 0 {
		return nil, fmt.Errorf("remat: a table for limits up to %d bytes; want 0 for all, or more", most)
	}
	t := newTerms(c)
	if t.n >= longChain {
		b, err := newBeam(ctx, t)
		if err != nil {
			return nil, err
		}
		b.width = leastWidth // a curve asks for dozens of plans
		return &Table{t: t, beam: b}, nil
	}
	b := newBounds(t)
	least, all := b.of(0, t.n)
	m := max(most-t.chain.Input, 1)
	if most == 0 || m > all {
		m = max(slices.Max(b.all), 1) // of all intervals: with the gradient of its end there, one can need more than the whole chain does
	}
	table := &Table{t: t, b: b}
	if table.steps, err = newSteps(ctx, t, b, o.Steps); err != nil || table.steps != nil {
		return table, err
	}
	slots := o.Slots
	for ; ; m, slots = m/4, max(o.Slots/2, 1) {
		g := newGrid(t, b, m, t.unitFor(m, slots), achievable)
		if err := g.fill(ctx); err != nil {
			return nil, err
		}
		table.grids = append(table.grids, g)
		if g.unit == t.grain || m/4 <= least {
			return table, nil
		}
	}
}

// grid is the finest for m bytes.
func (t *Table) grid(m int64) *grid {
	k := len(t.grids) - 1
	for k > 0 && t.grids[k].most < m {
		k--
	}
	return t.grids[k]
}

// Exact reports whether the table's plans are the fastest.
func (t *Table) Exact() bool { return t.steps != nil }

// Most is the greatest limit that the table is for, in bytes. For greater limits its plans exist,
// but may be slow.
func (t *Table) Most() int64 { return t.most() + t.t.chain.Input }

// most is the greatest m.
func (t *Table) most() int64 {
	switch {
	case t.beam != nil:
		_, all := t.beam.of(0, t.t.n)
		return all
	case t.steps != nil:
		return slices.Max(t.b.all)
	}
	return t.grids[0].most
}

// of is the least m that has a plan, and the m from which on nothing need be computed again.
func (t *Table) of() (least, all int64) {
	if t.beam != nil {
		return t.beam.of(0, t.t.n)
	}
	return t.b.of(0, t.t.n)
}

// Bytes is the size of the table.
func (t *Table) Bytes() (sum int64) {
	switch {
	case t.beam != nil:
		return t.beam.size()
	case t.steps != nil:
		return t.steps.size()
	}
	for _, g := range t.grids {
		sum += g.size()
	}
	return sum
}

// Plan is the table's plan under a limit, as [Solve] returns one. The LowerBound of a table of
// slots is the time of running everything once. The least limit that the table of a long chain
// tells may be slightly too large.
func (t *Table) Plan(limit int64) remat.Plan {
	m := limit - t.t.chain.Input
	least, all := t.of()
	switch {
	case limit == 0:
		m = all
	case m < least:
		return remat.Plan{Limit: limit, Peak: t.t.chain.Input + least, Chain: t.t.chain.Fingerprint()}
	}
	bound := t.t.once
	switch {
	case t.beam != nil:
		bound += t.beam.bound(m)
	case t.steps != nil:
		bound = math.Inf(1)
	}
	return t.path(m).plan(limit, bound)
}

// path is a plan of the whole chain with m bytes beside x(0), least or more.
func (t *Table) path(m int64) *path {
	if t.steps != nil {
		return t.steps.path(m)
	}
	p := newPath(t.t)
	if t.beam != nil {
		t.beam.write(p, 0, t.t.n, m)
	} else {
		p.write(t.b, hopeful{t.grid(m)}, 0, t.t.n, m)
	}
	return p
}
