package segment

import (
	"slices"

	"penstock.example/internal/engine"
	"penstock.example/nn"
	"penstock.example/torch"
)

// tie is a parameter that several layers of the model use, at least one of them in the segment. Its
// gradients are summed as autograd sums them in one graph: latest use first. So a unit's backward
// starts from the sum of later units. Only the first unit adds to the gradient of earlier
// micro-batches.
type tie struct {
	handle      *nn.Param // of the first use
	first, last int       // units that use it
}

// findTies finds the segment's ties, in the order of their first use.
func (s *Segment) findTies() {
	index := map[*nn.Param]int{}
	for i := range s.units {
		u := &s.units[i]
		for _, l := range s.cfg.Layers[u.from:u.to] {
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

// Ties is the number of ties. They are numbered as the segment's layers list them (nn.Shared).
func (s *Segment) Ties() int { return len(s.ties) }

// TieTensor is the parameter of a tie, on the segment's device.
func (s *Segment) TieTensor(tie int) *torch.Tensor { return s.ties[tie].handle.Tensor() }

// Uses lists the ties whose parameters a unit uses, in the order of its layers.
func (s *Segment) Uses(unit int) []int { return s.units[unit].ties }

// Tied lists the ties that layers on both sides of the boundary before a unit use. Their gradients
// cross this boundary.
func (s *Segment) Tied(unit int) (ties []int) {
	for k, t := range s.ties {
		if t.first < unit && unit <= t.last {
			ties = append(ties, k)
		}
	}
	return ties
}

// trainedTies lists the trained parameters of ties that a unit uses.
func (s *Segment) trainedTies(unit int) (list []*torch.Tensor) {
	for _, h := range s.units[unit].handles {
		if t := h.Tensor(); t.RequiresGrad() {
			list = append(list, t)
		}
	}
	return list
}

// hideTies removes the gradients of earlier micro-batches from ties that an earlier unit uses, too.
// restore moves the backward's gradients into the execution and puts the removed ones back.
func (e *Execution) hideTies(c *torch.Ctx, at int) (restore func()) {
	var ties []int
	var params []*torch.Tensor
	for i, k := range e.s.units[at].ties {
		if e.s.ties[k].first < at {
			ties, params = append(ties, k), append(params, e.s.units[at].handles[i].Tensor())
		}
	}
	show := engine.HideGrads(c, params...)
	return func() {
		for i, k := range ties {
			e.ties[k].Free()
			e.ties[k] = takeGrad(c, params[i])
		}
		show()
	}
}
