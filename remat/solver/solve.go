package solver

import (
	"cmp"
	"context"
	"fmt"
	"math"

	"penstock.example/internal/arg"
	"penstock.example/remat"
)

// Options say how hard to look for a plan. The zero value takes the defaults.
type Options struct {
	// Steps is how many breakpoints of step functions may be looked at to solve a chain exactly. 0
	// is 32 Mi, which takes some tenths of a second and is enough for 60 layers, or for 100 that
	// are alike. Chains of up to 250 layers that need more, and all such chains if it is negative,
	// are solved by tables.
	Steps int64
	// Slots is how many numbers of bytes below the limit a table distinguishes; 0 is 500. Solve
	// begins with an eighth of them, and continues with finer tables, finer than this too, until
	// Gap is reached.
	Slots int
	// Gap is how far the time of a plan may be above the lower bound, as a part of it; 0 is 0.001.
	// A negative one asks for one pair of tables with Slots.
	Gap float64
	// MaxTable is the most bytes that a table of Solve may take; 0 is 512 MiB. The first table is
	// made in any case. Where MaxTable stops the refining, Plan.LowerBound says how far it has
	// come.
	MaxTable int64
}

const (
	defaultSteps    = 32 << 20
	defaultSlots    = 500 // as rotor
	defaultGap      = 0.001
	defaultMaxTable = 512 << 20
)

func (o Options) withDefaults() (Options, error) {
	if err := cmp.Or(arg.AtLeast("remat", "Slots", o.Slots, 0), arg.AtLeast("remat", "MaxTable", o.MaxTable, 0)); err != nil {
		return o, err
	}
	if math.IsNaN(o.Gap) {
		return o, &arg.ConfigError{Of: "remat", Field: "Gap", Value: o.Gap,
			Remedy: "want a part of the time, such as 0.001, or less than 0 for one pair of tables"}
	}
	o.Steps, o.Slots, o.Gap, o.MaxTable = cmp.Or(o.Steps, defaultSteps), cmp.Or(o.Slots, defaultSlots), cmp.Or(o.Gap, defaultGap), cmp.Or(o.MaxTable, defaultMaxTable)
	return o, nil
}

// Solve finds the plan of least time whose peak is at most limit. A limit counts all bytes of the
// chain, its input too; 0 is none.
//
// Up to some 60 layers, where Options.Steps suffice, the plan is the fastest; of the fastest plans
// it has the fewest recomputations, and of those the least peak. Up to 250 layers tables are
// refined until the plan is within Options.Gap of the bound. Longer chains are solved by beam
// search, and the options do not count. In any case the peak never exceeds the limit, and no plan
// is faster than Plan.LowerBound. If no plan stays under the limit, which is no error, the result
// is not feasible and its Peak is the least limit that has one.
//
// Plans are those that keep what they have kept until its backward (see the recurrence in
// terms.go). Solve returns an error for a chain that makes no sense, and ctx.Err() when ctx ends
// first.
func Solve(ctx context.Context, c remat.Chain, limit int64, o Options) (remat.Plan, error) {
	if err := arg.Context(ctx, "remat"); err != nil {
		return remat.Plan{}, err
	}
	o, err := o.withDefaults()
	if err != nil {
		return remat.Plan{}, err
	}
	if err := c.Check(); err != nil {
		return remat.Plan{}, err
	}
	if limit < 0 {
		return remat.Plan{}, fmt.Errorf("remat: a limit of %d bytes; want 0 for none, or more", limit)
	}
	t := newTerms(c)
	p, bound, least, err := solveTerms(ctx, t, limit, o)
	switch {
	case err != nil:
		return remat.Plan{}, err
	case p == nil:
		return remat.Plan{Limit: limit, Peak: least, Chain: c.Fingerprint()}, nil
	}
	return p.plan(limit, t.once+bound), nil
}

// solveTerms is Solve of a chain's terms. It returns the plan and a bound of its time beyond once,
// or, if there is none under the limit, nil and the least limit that has one.
func solveTerms(ctx context.Context, t *terms, limit int64, o Options) (p *path, bound float64, least int64, err error) {
	p = newPath(t)
	if p.all(0, t.n); limit == 0 || limit >= p.peak {
		return p, 0, 0, nil
	}
	m := limit - t.chain.Input
	if t.n >= longChain {
		b, err := newBeam(ctx, t)
		if err != nil {
			return nil, 0, 0, err
		}
		if m >= b.least(0, t.n) {
			p := newPath(t)
			b.write(p, 0, t.n, m)
			return p, b.bound(m), 0, ctx.Err()
		}
	}
	exact := newLeasts(t)
	if least = exact.least(0, t.n); m < least {
		return nil, 0, t.chain.Input + least, nil
	}
	if t.n >= longChain { // and the limit so close to the least that cells cannot tell
		w := newPath(t)
		exact.write(w, 0, t.n, m)
		return w, 0, 0, nil
	}
	b := newBounds(t)
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

// better says that p is faster than q, or as fast with fewer recomputations, or with less memory.
func (p *path) better(q *path) bool {
	return cmp.Or(cmp.Compare(p.extra, q.extra), cmp.Compare(p.recomputed, q.recomputed), cmp.Compare(p.peak, q.peak)) < 0
}
