package segment

import (
	"slices"

	"penstock.example/nn"
	"penstock.example/torch"
)

// tie is a parameter that several layers of the model use, at least one of them in the segment. Its
// gradients are summed latest use first, as autograd sums them in one graph. So the backward of a unit
// starts from the sum of the units after it, and only the first of them adds to the gradient of earlier
// micro-batches.
type tie struct {
	handle      *nn.Param // of the first use
	first, last int       // of the units that use it
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
					u.ties, u.handles = append(u.ties, k), append(u.handles, p.Param)
				}
			}
		}
	}
}

// Ties is the number of parameters that layers of the segment share with each other or with layers
// outside. Ties are numbered in the order in which the segment's layers list them (nn.Shared).
func (s *Segment) Ties() int { return len(s.ties) }

// TieTensor is the parameter of a tie, on this segment's device.
func (s *Segment) TieTensor(tie int) *torch.Tensor { return s.ties[tie].handle.Tensor() }

// Uses reports whether a unit uses the parameter of a tie.
func (s *Segment) Uses(unit, tie int) bool { return slices.Contains(s.units[unit].ties, tie) }

// Tied lists the ties with a gradient that waits at the boundary before a unit: units before it and after
// it use them.
func (s *Segment) Tied(unit int) (ties []int) {
	for k, t := range s.ties {
		if t.first < unit && unit <= t.last {
			ties = append(ties, k)
		}
	}
	return ties
}

// tied lists the trained parameters of ties that a unit uses.
func (s *Segment) tied(unit int) (list []*torch.Tensor) {
	for _, h := range s.units[unit].handles {
		if t := h.Tensor(); t.RequiresGrad() {
			list = append(list, t)
		}
	}
	return list
}

// aside takes the gradient of earlier micro-batches away from ties that an earlier unit uses too.
// restore moves the gradient of the backward into the execution, and puts the earlier one back. A second
// call of restore does nothing.
func (e *Execution) aside(c *torch.Ctx, at int) (restore func()) {
	var undo []func()
	for i, k := range e.s.units[at].ties {
		if e.s.ties[k].first == at {
			continue
		}
		p := e.s.units[at].handles[i].Tensor()
		before := c.GradOf(p)
		p.SetGradOf(nil)
		undo = append(undo, func() {
			e.ties[k].Free()
			e.ties[k] = taken(c, p)
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
