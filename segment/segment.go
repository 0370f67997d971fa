// Package segment runs a part of a model by the operations of a rematerialisation plan (package remat/plan): forward without gradients, forward with, backward, one [Unit] of layers at a time, in
// whatever order the plan has them. It is the one interpreter of all checkpoint policies: a pipe's stage that keeps everything, or nothing but its input, is a segment of one unit.
//
// The autograd graph is cut around every unit: inputs hang on gates, whose mailboxes get the gradients. What a unit needs and gives, tensors, skip connections and gradients, belongs to the walk
// between operations, so that its bytes come and go exactly when the plan says. Results do not depend on the cuts, to the bit: gates keep layouts, skips are summed pop by pop, latest first, and
// the gradient of a parameter that several units use goes from the last of them to the first.
package segment

import (
	"fmt"
	"slices"

	"penstock/nn"
)

// Segment is a contiguous part of a model's flattened layers, cut into units. It does not change after New, and may be walked by many at the same time.
type Segment struct {
	layers    []nn.NamedLayer // of the model
	routes    []nn.SkipRoute
	first     int
	hold      bool
	overwrite bool
	units     []unit
	borders   [][]crossing // skips at the border before each unit, and behind the last
	ties      []tie
}

// Config says what a segment is.
type Config struct {
	Layers      []nn.NamedLayer // the model's flattened layers
	Routes      []nn.SkipRoute  // of the model
	First, Last int             // the segment has the layers First <= i < Last
	// Units is the number of layers of each unit. Nil is one unit of all.
	Units []int
	// InputGrad says that a gradient of what the segment is sent is wanted, whatever comes before it: where the graph of the unit before is still to be made, it is the reason to assume that it wants one.
	InputGrad bool
	// Hold lets a backward hold its unit's output, and the gradients of it, to its end. That saves some microseconds of each, and takes what lies between the unit's last layers.
	Hold bool
	// Overwrite lets layers overwrite what their unit is given, as they may within a unit: nothing is to be computed from it again. Skips are kept.
	Overwrite bool
}

// unit is what an operation is about.
type unit struct {
	from, to int // of the model's layers
	popped   []passing
	stashed  []stashed
	passed   [][2]int // skips that go by: index at the border before, and behind
	ties     []int    // of the segment, that its layers use
	trained  bool     // something before the unit, in the segment, has a gradient
}

// crossing is a skip at a border between units.
type crossing struct {
	key  nn.SkipKey
	pops []int // units that pop it from here on, as often as they do; len(units) for those behind the segment, once
}

// passing is a skip that a unit pops: it comes in as one of those at the border, and goes on if it is popped later as well.
type passing struct {
	key     nn.SkipKey
	in, out int // index at the border before and behind; out is -1 if this unit pops it last
	pops    int
}

// stashed is a skip that a unit stashes and a later one, or a later segment, pops.
type stashed struct {
	key nn.SkipKey
	out int // index at the border behind
}

// New cuts a segment.
func New(cfg Config) (*Segment, error) {
	if cfg.First < 0 || cfg.Last > len(cfg.Layers) || cfg.First >= cfg.Last {
		return nil, fmt.Errorf("segment: layers %d to %d of %d; a segment has at least one", cfg.First, cfg.Last, len(cfg.Layers))
	}
	counts := cfg.Units
	if counts == nil {
		counts = []int{cfg.Last - cfg.First}
	}
	s := &Segment{layers: cfg.Layers, routes: cfg.Routes, first: cfg.First, hold: cfg.Hold, overwrite: cfg.Overwrite}
	at, trained := cfg.First, cfg.InputGrad
	for i, n := range counts {
		if n < 1 {
			return nil, fmt.Errorf("segment: unit %d has %d layers; every unit needs at least 1 (units %v)", i, n, cfg.Units)
		}
		s.units = append(s.units, unit{from: at, to: min(at+n, cfg.Last), trained: trained})
		for _, l := range cfg.Layers[min(at, cfg.Last):min(at+n, cfg.Last)] {
			trained = trained || len(nn.Params(l.Layer)) > 0
		}
		at += n
	}
	if at != cfg.Last {
		return nil, fmt.Errorf("segment: units %v have %d layers, the segment %d", cfg.Units, at-cfg.First, cfg.Last-cfg.First)
	}
	s.route(cfg.Routes)
	s.tie()
	return s, nil
}

// Units is the number of units.
func (s *Segment) Units() int { return len(s.units) }

// unitOf is the unit of a layer of the model; len(units) behind the segment.
func (s *Segment) unitOf(layer int) int {
	for i, u := range s.units {
		if layer < u.to {
			return i
		}
	}
	return len(s.units)
}

// route finds where skips cross borders.
func (s *Segment) route(routes []nn.SkipRoute) {
	borders := make([][]crossing, len(s.units)+1)
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
			case from >= 0 && !slices.Contains(pops, last): // one that comes from before the segment does not go on through it
				pops = append(pops, last)
			}
		}
		pops = slices.DeleteFunc(pops, func(u int) bool { return u <= from }) // those in the unit that stashes are its own affair
		if len(pops) == 0 {
			continue
		}
		end := pops[len(pops)-1]
		for b := from + 1; b <= end; b++ {
			rest := slices.DeleteFunc(slices.Clone(pops), func(u int) bool { return u < b })
			borders[b] = append(borders[b], crossing{r.Key, rest})
		}
	}
	for i := range s.units {
		s.units[i].cross(i, borders[i], borders[i+1])
	}
	s.borders = borders
}

// cross finds what a unit does to the skips at its borders.
func (u *unit) cross(at int, before, behind []crossing) {
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
		out := index(behind, c.key)
		if n > 0 {
			u.popped = append(u.popped, passing{c.key, i, out, n})
		} else {
			u.passed = append(u.passed, [2]int{i, out})
		}
	}
	for i, c := range behind {
		if index(before, c.key) < 0 {
			u.stashed = append(u.stashed, stashed{c.key, i})
		}
	}
}

// Goes says of a skip at the border before a unit, by its place there, how often the unit pops it, and its place at the border behind the unit; -1 if it does not go on.
func (s *Segment) Goes(unit, place int) (pops, behind int) {
	u := &s.units[unit]
	for _, p := range u.popped {
		if p.in == place {
			return p.pops, p.out
		}
	}
	for _, p := range u.passed {
		if p[0] == place {
			return 0, p[1]
		}
	}
	return 0, -1
}

// Crossing is how often each skip at the border before a unit is popped from there on, in the order of the border's skips. It has an entry for each.
func (s *Segment) Crossing(unit int) []int {
	out := make([]int, len(s.borders[unit]))
	for i, c := range s.borders[unit] {
		out[i] = len(c.pops)
	}
	return out
}

// Enters is the place of a skip among those that the segment is sent, for Walk.Give; -1 if the segment does not pop it. Leaves is its place among those that it sends.
func (s *Segment) Enters(key nn.SkipKey) int { return place(s.borders[0], key) }

// Leaves is the place of a skip among those that the segment stashes for layers behind it; -1 if it does not.
func (s *Segment) Leaves(key nn.SkipKey) int { return place(s.borders[len(s.units)], key) }

func place(list []crossing, key nn.SkipKey) int {
	return slices.IndexFunc(list, func(c crossing) bool { return c.key == key })
}
