// Package segment runs a part of a model by the operations of a rematerialisation plan (package
// remat). An operation is a forward or a backward of one unit of layers. All checkpoint policies are
// such plans: a stage that keeps everything, or its input alone, is a segment of one unit.
//
// The autograd graph is cut around every unit. The inputs of a unit hang on gates, which leave gradients in
// mailboxes. Between operations an [Execution] owns the tensors, skip connections and gradients
// that pass from unit to unit. So bytes come and go exactly when the plan says.
//
// Results do not depend on the cuts, to the bit. Values and gradients between layers are dense, with or
// without a cut. The gradients of a skip connection are summed pop by pop, latest first. The gradient of
// a parameter that several units use goes from the last of them to the first.
package segment

import (
	"fmt"
	"slices"

	"penstock.example/nn"
)

// Segment is a contiguous part of a model's flattened layers, cut into units. It does not change
// after New, and any number of executions may use it at the same time.
type Segment struct {
	layers     []nn.NamedLayer // of the model
	first      int
	hold       bool
	overwrite  bool
	units      []unit
	boundaries [][]crossing // skips at the boundary before each unit, and after the last
	routes     []nn.SkipRoute
	ties       []tie
}

// Config describes a segment.
type Config struct {
	// the model's flattened layers; nn.LossLayer after them makes the loss a part of a unit, or a unit
	Layers      []nn.NamedLayer
	Routes      []nn.SkipRoute // of the model
	First, Last int            // the segment has the layers First <= i < Last
	// Units is the number of layers of each unit. Nil is one unit of all.
	Units []int
	// InputGrad says that a gradient of the model's input is wanted.
	InputGrad bool
	// Hold lets a backward hold its unit's output and the output's gradients to its end, which saves
	// some microseconds. A segment of one unit then frees its input after a forward with gradients. Plans
	// do not predict these bytes.
	Hold bool
	// Overwrite lets layers overwrite the input of their unit, from which nothing is computed again.
	Overwrite bool
}

// unit is a run of layers that operations treat as one.
type unit struct {
	from, to int // layers of the model
	popped   []popped
	stashed  []stashed
	// skips that the unit neither pops nor stashes: place at the boundary before, and after
	passed  [][2]int
	ties    []int       // ties of the segment that the unit's layers use
	handles []*nn.Param // by which they do, one of each tie
	trained bool        // something before the unit has a gradient
}

// crossing is a skip at a boundary between units.
type crossing struct {
	key     nn.SkipKey
	trained bool // the layer that stashes it, or something before, has a gradient
	// units that pop it from here on, once for each pop; len(units), once, for all layers after the segment
	pops []int
}

// popped is a skip that a unit pops. It goes on to the next boundary if a later unit pops it as
// well.
type popped struct {
	crossing
	in, out int // place at the boundary before, and after; out is -1 after the last pop
	times   int
}

// stashed is a skip that a unit stashes and a later unit, or a later segment, pops.
type stashed struct {
	key nn.SkipKey
	out int // place at the boundary after
}

// New cuts a segment. It returns an error if units and layers do not fit together.
func New(cfg Config) (*Segment, error) {
	counts := cfg.Units
	if counts == nil {
		counts = []int{cfg.Last - cfg.First}
	}
	s := &Segment{layers: cfg.Layers, routes: cfg.Routes, first: cfg.First, hold: cfg.Hold,
		overwrite: cfg.Overwrite}
	trained := -1 // the first layer with a gradient
	if !cfg.InputGrad {
		trained = FirstTrained(cfg.Layers)
	}
	at := cfg.First
	for _, n := range counts {
		s.units = append(s.units, unit{from: at, to: min(at+n, cfg.Last), trained: trained < at})
		at += n
	}
	if at != cfg.Last {
		return nil, fmt.Errorf("segment: units %v have %d layers, the segment %d", cfg.Units, at-cfg.First,
			cfg.Last-cfg.First)
	}
	s.route(cfg.Routes, trained)
	s.tie()
	return s, nil
}

// FirstTrained returns the first layer that has parameters to train; len(layers) if none has.
func FirstTrained(layers []nn.NamedLayer) int {
	for i, l := range layers {
		if len(nn.Params(l.Layer)) > 0 {
			return i
		}
	}
	return len(layers)
}

// Units is the number of units.
func (s *Segment) Units() int { return len(s.units) }

// unitOf is the unit of a layer of the model; len(units) for layers after the segment.
func (s *Segment) unitOf(layer int) int {
	for i, u := range s.units {
		if layer < u.to {
			return i
		}
	}
	return len(s.units)
}

// route finds where skips cross boundaries. trained is the first layer with a gradient.
func (s *Segment) route(routes []nn.SkipRoute, trained int) {
	boundaries := make([][]crossing, len(s.units)+1)
	last := len(s.units)
	for _, r := range routes {
		from := -1
		if r.Stash >= s.first {
			if from = s.unitOf(r.Stash); from == last {
				continue
			}
		}
		var pops []int
		for _, p := range r.Pops {
			switch {
			case p < s.first:
			case s.unitOf(p) < last:
				pops = append(pops, s.unitOf(p))
			// a skip from before the segment does not go on through it
			case from >= 0 && !slices.Contains(pops, last):
				pops = append(pops, last)
			}
		}
		// pops in the stashing unit cross no boundary
		pops = slices.DeleteFunc(pops, func(u int) bool { return u <= from })
		if len(pops) == 0 {
			continue
		}
		end := pops[len(pops)-1]
		for b := from + 1; b <= end; b++ {
			rest := slices.DeleteFunc(slices.Clone(pops), func(u int) bool { return u < b })
			boundaries[b] = append(boundaries[b], crossing{r.Key, r.Stash >= trained, rest})
		}
	}
	for i := range s.units {
		s.units[i].cross(i, boundaries[i], boundaries[i+1])
	}
	s.boundaries = boundaries
}

// cross finds the skips that a unit pops, passes on and stashes.
func (u *unit) cross(at int, before, after []crossing) {
	index := func(list []crossing, key nn.SkipKey) int {
		return slices.IndexFunc(list, func(c crossing) bool { return c.key == key })
	}
	for i, c := range before {
		n := 0
		for _, p := range c.pops {
			if p == at {
				n++
			}
		}
		out := index(after, c.key)
		if n > 0 {
			u.popped = append(u.popped, popped{c, i, out, n})
		} else {
			u.passed = append(u.passed, [2]int{i, out})
		}
	}
	for i, c := range after {
		if index(before, c.key) < 0 {
			u.stashed = append(u.stashed, stashed{c.key, i})
		}
	}
}

// Goes follows the skip at a place of the boundary before a unit. It returns how often the unit
// pops it, and its place at the boundary after the unit, -1 if it does not go on.
func (s *Segment) Goes(unit, place int) (pops, after int) {
	u := &s.units[unit]
	for _, p := range u.popped {
		if p.in == place {
			return p.times, p.out
		}
	}
	for _, p := range u.passed {
		if p[0] == place {
			return 0, p[1]
		}
	}
	return 0, -1
}

// Crossing has an entry for each skip at the boundary before a unit: how often it is popped from
// there on.
func (s *Segment) Crossing(unit int) []int {
	out := make([]int, len(s.boundaries[unit]))
	for i, c := range s.boundaries[unit] {
		out[i] = len(c.pops)
	}
	return out
}
