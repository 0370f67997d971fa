package solver

import (
	"penstock/remat"
)

// Least is a plan of the least peak that there is, exactly, and the first operation at that peak,
// as an index into its Ops: what must shrink for less to be enough. Its limit is its peak; it does
// not try to be fast, as [Solve] does at that limit. The error is a [*remat.ChainError].
func Least(c remat.Chain) (p remat.Plan, peakOp int, err error) {
	if err := c.Check(); err != nil {
		return remat.Plan{}, 0, err
	}
	t := newTerms(c)
	b := newBounds(t)
	least, _ := b.of(0, t.n)
	w := newPath(t)
	w.write(b, hasty{t}, 0, t.n, least)
	return w.plan(w.peak, t.once), w.peakOp, nil
}

// hasty is an adviser that looks no farther than the next sweep.
type hasty struct{ t *terms }

func (h hasty) at(i, l int, m int64) float64 { return 0 }

func (h hasty) nograd(i, j int) float64 { return float64(j - i) }

// Greatest is the peak of the plan that recomputes nothing, in bytes: the limit from which on there
// is nothing to win. The error is a [*remat.ChainError].
func Greatest(c remat.Chain) (int64, error) {
	if err := c.Check(); err != nil {
		return 0, err
	}
	t := newTerms(c)
	p := newPath(t)
	p.all(0, t.n)
	return p.peak, nil
}
