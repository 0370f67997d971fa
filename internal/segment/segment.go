// Package segment runs a part of a model by the operations of a rematerialisation plan (package
// remat). An operation is a forward or a backward of one unit of layers. Every checkpoint policy is
// such a plan. A stage that keeps everything, or its input alone, is a segment of one unit.
//
// The autograd graph is cut around every unit. A unit's inputs pass through gates, which put their
// gradients into mailboxes. Between operations an [Execution] owns the tensors, skip connections
// and gradients that pass from unit to unit. So memory is used and freed exactly as planned.
//
// The cuts do not change a bit of the results. Values and gradients between layers are dense, with
// or without a cut. The gradients of a skip are summed pop by pop, latest first. The gradient of a
// parameter that several units use is passed from the last of these units to the first.
package segment

import (
	"fmt"
	"slices"

	"penstock.example/nn"
)

// Segment is a contiguous part of a model's flattened layers, cut into units. It does not change
// after New, and any number of executions may use it at the same time.
type Segment struct {
	cfg        Config
	units      []unit
	boundaries [][]Crossing // skips at the boundary before each unit, and after the last
	ties       []tie
}

// Config describes a segment.
type Config struct {
	// Layers are the model's flattened layers, with nn.LossLayer at the end if a unit has the loss.
	Layers      []nn.NamedLayer
	Routes      []nn.SkipRoute // of the model
	First, Last int            // the segment has the layers First <= i < Last
	Units       []int          // the number of layers of each unit; nil is one unit
	InputGrad   bool           // the model's input wants a gradient
	// Hold keeps a unit's output and the output's gradients until its backward ends, which saves
	// microseconds. If the segment has one unit, a forward with a graph frees the unit's input. No
	// plan predicts these bytes.
	Hold bool
	// Overwrite lets layers overwrite their unit's input. Nothing is then recomputed from it.
	Overwrite bool
}

// unit is a range of layers that operations treat as one.
type unit struct {
	from, to  int         // layers of the model
	entering  []skip      // by place at the boundary before
	stashed   []stashed   // skips that a later unit, or a later segment, pops
	ties      []int       // ties of the segment that the unit's layers use
	handles   []*nn.Param // the first handle of each tie in the unit
	wantsGrad bool        // a layer before the unit is trained, or the model's input wants a gradient
}

// Crossing is a skip at a boundary between units.
type Crossing struct {
	key       nn.SkipKey
	wantsGrad bool // its layer or one before is trained, or the model's input wants a gradient
	Stash     int  // the unit that stashes it; -1 is before the segment
	// Pops has the unit of each later pop, ascending. All after the segment are one entry, Units().
	Pops []int
}

// skip is a skip at the boundary before a unit.
type skip struct {
	Crossing
	times int // pops in the unit
	out   int // place at the boundary after; -1 after the last pop
}

type stashed struct {
	key nn.SkipKey
	out int // place at the boundary after
}

// New cuts a segment. It returns an error if units and layers do not fit together.
func New(cfg Config) (*Segment, error) {
	s, all := &Segment{cfg: cfg}, cfg.Last-cfg.First
	counts := cfg.Units
	if counts == nil {
		counts = []int{all}
	}
	firstTrained := -1 // the first layer with a gradient
	if !cfg.InputGrad {
		firstTrained = FirstTrained(cfg.Layers)
	}
	at := cfg.First
	for _, n := range counts {
		s.units = append(s.units, unit{from: at, to: min(at+n, cfg.Last), wantsGrad: firstTrained < at})
		at += n
	}
	if at != cfg.Last {
		return nil, fmt.Errorf("segment: units %v have %d layers, the segment %d", counts, at-cfg.First, all)
	}
	s.route(firstTrained)
	s.findTies()
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

// unitOf is the unit of a layer of the model, or len(units) after the segment.
func (s *Segment) unitOf(layer int) int {
	for i, u := range s.units {
		if layer < u.to {
			return i
		}
	}
	return len(s.units)
}

// route finds the skips at each boundary. firstTrained is the first layer with a gradient.
func (s *Segment) route(firstTrained int) {
	last := len(s.units)
	s.boundaries = make([][]Crossing, last+1)
	for _, r := range s.cfg.Routes {
		from := -1
		if r.Stash >= s.cfg.First {
			if from = s.unitOf(r.Stash); from == last {
				continue
			}
		}
		var pops []int
		for _, p := range r.Pops {
			switch {
			case p < s.cfg.First:
			case s.unitOf(p) < last:
				pops = append(pops, s.unitOf(p))
			// a skip from before the segment does not pass through it
			case from >= 0 && !slices.Contains(pops, last):
				pops = append(pops, last)
			}
		}
		// pops in the stashing unit cross no boundary
		pops = slices.DeleteFunc(pops, func(u int) bool { return u <= from })
		for b := from + 1; len(pops) > 0; b++ {
			s.boundaries[b] = append(s.boundaries[b], Crossing{r.Key, r.Stash >= firstTrained, from, pops})
			pops = slices.DeleteFunc(slices.Clone(pops), func(u int) bool { return u <= b })
		}
	}
	for i := range s.units {
		s.units[i].setSkips(i, s.boundaries[i], s.boundaries[i+1])
	}
}

// setSkips fills in the skips that enter the unit with number at, and the skips that it stashes.
func (u *unit) setSkips(at int, before, after []Crossing) {
	index := func(list []Crossing, key nn.SkipKey) int {
		return slices.IndexFunc(list, func(c Crossing) bool { return c.key == key })
	}
	for _, c := range before {
		n := 0
		for _, p := range c.Pops {
			if p == at {
				n++
			}
		}
		u.entering = append(u.entering, skip{c, n, index(after, c.key)})
	}
	for i, c := range after {
		if index(before, c.key) < 0 {
			u.stashed = append(u.stashed, stashed{c.key, i})
		}
	}
}

// Crossing lists the skips at the boundary before a unit, by place.
func (s *Segment) Crossing(unit int) []Crossing { return s.boundaries[unit] }
