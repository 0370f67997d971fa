package segment

import (
	"slices"

	"penstock/nn"
	"penstock/torch"
)

// tie is a parameter that several layers of the model use, one of them here. Its uses in different units are summed as autograd sums them in one graph, latest first: what the later
// units have is a gradient that the backward of the one before starts from. Only the first unit that uses it adds to what the parameter has from earlier micro-batches.
type tie struct {
	handle      *nn.Param
	first, last int // of the units that use it
}

// tie finds the segment's ties, in the order of their first use.
func (s *Segment) tie() {
	index := map[*nn.Param]int{}
	for i := range s.units {
		u := &s.units[i]
		for _, l := range s.layers[u.from:u.to] {
			for _, p := range nn.Shared(l.Layer) {
				k, known := index[p.Owner()]
				if !known {
					k = len(s.ties)
					index[p.Owner()] = k
					s.ties = append(s.ties, tie{handle: p.Param, first: i})
				}
				s.ties[k].last = i
				if !slices.Contains(u.ties, k) {
					u.ties = append(u.ties, k)
				}
			}
		}
	}
}

// Ties is the number of parameters that layers of the segment share, with each other or with layers outside: in the order in which the segment's layers list them (nn.Shared).
func (s *Segment) Ties() int { return len(s.ties) }

// TieTensor is the parameter of a tie, on this segment's device.
func (s *Segment) TieTensor(tie int) *torch.Tensor { return s.ties[tie].handle.Tensor() }

// Uses says whether a unit uses the parameter of a tie.
func (s *Segment) Uses(unit, tie int) bool { return slices.Contains(s.units[unit].ties, tie) }

// Tied are the ties whose gradient waits at the border before a unit, between those units that use them.
func (s *Segment) Tied(unit int) (ties []int) {
	for k, t := range s.ties {
		if t.first < unit && unit <= t.last {
			ties = append(ties, k)
		}
	}
	return ties
}

// aside takes the gradient of a tie that an earlier unit uses too away, for the time of a backward. The function that it returns moves what has come meanwhile into the walk, and puts the
// gradient back; calling it again does nothing.
func (w *Walk) aside(c *torch.Ctx, at int) (restore func()) {
	var undo []func()
	for _, k := range w.s.units[at].ties {
		t := w.s.ties[k]
		if t.first == at {
			continue
		}
		p := t.handle.Tensor()
		before := c.GradOf(p)
		p.SetGradOf(nil)
		undo = append(undo, func() {
			w.ties[k].Free()
			w.ties[k] = taken(c, p)
			p.SetGradOf(before)
		})
	}
	return func() {
		for _, u := range undo {
			u()
		}
		undo = nil
	}
}
