package solver

import (
	"cmp"
	"context"
	"fmt"
	"math"

	"penstock.example/remat"
)

// Options say how hard to look for a plan.
type Options struct {
	// Steps is the number of breakpoints that may be looked at to solve a chain exactly. 0 is 32 Mi,
	// which takes some tenths of a second and is enough for 60 layers, or for 100 that are alike.
	// Chains that need more are solved by tables, and all chains if Steps is negative.
	Steps int64
	// Slots is the number of different bytes below the limit in a table; 0 is 500. Solve begins with
	// an eighth of them, and continues with finer tables until Gap is reached or a table takes 128 MiB.
	Slots int
	// Gap is the part by which a plan's time may exceed the lower bound; 0 is 0.001. If it is negative,
	// one pair of tables with Slots has to do.
	Gap float64
}

func (o Options) withDefaults() Options {
	return Options{cmp.Or(o.Steps, 32<<20), cmp.Or(o.Slots, 500), cmp.Or(o.Gap, 0.001)}
}

// Solve finds the plan of least time with a peak of at most limit. A limit counts all bytes of the
// chain, its input too; 0 is none.
//
// Up to some 60 layers, where Options.Steps suffice, the plan is the fastest one; among equals it has
// the fewest recomputations, and then the least peak. Up to 250 layers tables are refined until the
// plan is within Options.Gap of the bound. Longer chains are joined to 250 layers, and Plan.LowerBound
// is the time of running everything once. The peak never exceeds the limit, and no plan is faster than
// Plan.LowerBound. If no plan keeps the limit, the result is not feasible and its Peak is the least
// limit with a plan.
//
// Plans are persistent: an input that is kept stays until its backward (see terms.go). Solve returns
// an error for a chain that makes no sense, and ctx.Err() when ctx ends first.
func Solve(ctx context.Context, c remat.Chain, limit int64, o Options) (remat.Plan, error) {
	if err := c.Check(); err != nil {
		return remat.Plan{}, err
	}
	if limit < 0 {
		return remat.Plan{}, fmt.Errorf("remat: a limit of %d bytes; want 0 for none, or more", limit)
	}
	t := newTerms(c, false)
	p, bound, least, err := solveTerms(ctx, t, limit, o.withDefaults())
	switch {
	case err != nil:
		return remat.Plan{}, err
	case p == nil:
		return remat.Plan{Limit: limit, Peak: least, Chain: c.Fingerprint()}, nil
	}
	return p.plan(limit, t.once+bound), nil
}

// solveTerms solves a chain's terms. It returns the plan and a lower bound of its time beyond once, or nil
// and the least limit with a plan.
func solveTerms(ctx context.Context, t *terms, limit int64, o Options) (p *path, bound float64, least int64,
	err error) {
	p = newPath(t)
	if p.all(0, t.n); limit == 0 || limit >= p.peak {
		return p, 0, 0, nil
	}
	b := newBounds(t)
	m := limit - t.chain.Input
	if least, _ = b.of(0, t.n); m < least {
		return nil, 0, t.chain.Input + least, nil
	}
	if t.n > mostLayers {
		j := join(t, mostLayers)
		o.Gap = -1 // joining loses more time than a gap
		if p, _, _, err = solveTerms(ctx, newTerms(j.chain, false), limit, o); err != nil {
			return nil, 0, 0, err
		}
		if p == nil { // the limit is too low for joined layers
			p = newPath(t)
			p.write(b, sparing{}, 0, t.n, m)
			return p, 0, 0, nil
		}
		return j.path(t, p), 0, 0, nil
	}
	s, err := newSteps(ctx, t, b, o.Steps)
	switch {
	case err != nil:
		return nil, 0, 0, err
	case s != nil:
		return s.path(m), math.Inf(1), 0, nil
	}
	p, bound, err = refine(ctx, t, b, limit, o)
	return p, bound, 0, err
}

// Least returns a plan of the least possible peak, which is its limit, and the first operation at that
// peak. The plan need not be fast; [Solve] makes a fast one at that limit. The error is a
// [*remat.ChainError].
func Least(c remat.Chain) (p remat.Plan, sets remat.Op, err error) {
	if err := c.Check(); err != nil {
		return remat.Plan{}, remat.Op{}, err
	}
	t := newTerms(c, false)
	b := newBounds(t)
	least, _ := b.of(0, t.n)
	w := newPath(t)
	w.write(b, sparing{}, 0, t.n, least)
	return w.plan(w.peak, t.once), w.ops[w.peakOp], nil
}
