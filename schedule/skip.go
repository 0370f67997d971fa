package schedule

import (
	"cmp"
	"fmt"
	"slices"
)

// Edge is a pair of stages between which something moves directly, past the stages in between: a
// skip connection, or a parameter that both use. Activations go from From to To, gradients back.
type Edge struct {
	From, To int // From < To
}

// String returns the edge's text form, as in 0>3.
func (e Edge) String() string { return fmt.Sprintf("%d>%d", e.From, e.To) }

func compareEdges(a, b Edge) int {
	return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To))
}

// neighbours reports whether the edge joins neighbours, and so is no skip.
func (e Edge) neighbours() bool { return e.To == e.From+1 }

// check checks an edge of a program with a number of stages.
func (e Edge) check(stages int) error {
	switch {
	case e.From < 0 || e.From >= stages || e.To < 0 || e.To >= stages:
		return fmt.Errorf("skip %v: stages go from 0 to %d", e, stages-1)
	case e.From >= e.To:
		return fmt.Errorf("skip %v: want an earlier stage first, as in 0>2", e)
	}
	return nil
}

// skips validates the config's edges and returns the program's skips: sorted, each once, none
// between neighbours; nil if none are left.
func (c Config) skips() ([]Edge, error) {
	var skips []Edge
	for _, e := range c.Skips {
		if err := e.check(c.Stages); err != nil {
			return nil, err
		}
		if !e.neighbours() {
			skips = append(skips, e)
		}
	}
	slices.SortFunc(skips, compareEdges)
	return slices.Compact(skips), nil
}

// checkSkips lists the faults of the program's skips.
func (p *Program) checkSkips() []error {
	var faults []error
	for i, e := range p.Skips {
		switch err := e.check(p.Stages); {
		case err != nil:
			faults = append(faults, err)
		case e.neighbours():
			faults = append(faults, fmt.Errorf("skip %v: neighbours need none", e))
		case i > 0 && p.Skips[i-1] == e:
			faults = append(faults, fmt.Errorf("skip %v: declared twice", e))
		case i > 0 && compareEdges(p.Skips[i-1], e) > 0:
			faults = append(faults, fmt.Errorf("skip %v: comes after %v, want skips in ascending order", e, p.Skips[i-1]))
		}
	}
	return faults
}

// declared reports whether the program has transfers along the edge. The program's skips must be
// sorted.
func (p *Program) declared(e Edge) bool {
	if e.neighbours() {
		return true
	}
	_, found := slices.BinarySearchFunc(p.Skips, e, compareEdges)
	return found
}

// fan lists, for each stage that has any, the other ends of its skips: into it, and out of it.
type fan struct {
	from map[int][]int // by To, ascending where the skips are
	to   map[int][]int // by From, likewise
}

func fanOf(skips []Edge) fan {
	f := fan{make(map[int][]int), make(map[int][]int)}
	for _, e := range skips {
		f.from[e.To] = append(f.from[e.To], e.From)
		f.to[e.From] = append(f.to[e.From], e.To)
	}
	return f
}
