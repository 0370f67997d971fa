package profile

import (
	"slices"

	"penstock/nn"
	"penstock/segment"
	"penstock/torch"
)

// storage is memory that inputs of units lie in, or gradients of them.
type storage struct {
	bytes       int64
	first, last int // borders at which it is; for gradients, which come down, first is the greater
}

// flows follows memory from border to border: forward what units are given, and back the gradients of that. Elements of a border are those of the tuple and then the skips; of its gradients those of
// the tuple, of each skip those of its pops from there on, and those of the ties that wait there.
type flows struct {
	s        *segment.Segment
	storages []*storage
	states   [][]*storage // by border, by element; nil where there is none

	tuple   []int      // by border: elements of the tuple
	origins [][]origin // by unit, by element of the gradients of its input
	end     []int64    // bytes of the gradients of the last output, by element
}

func newFlows(s *segment.Segment, xs, skips []*torch.Tensor) *flows {
	f := &flows{s: s, states: make([][]*storage, s.Units()+1), origins: make([][]origin, s.Units()), tuple: make([]int, s.Units()+1)}
	f.enter(0, nil, slices.Concat(xs, skips))
	f.tuple[0] = len(xs)
	return f
}

// enter records what is at a border. Memory that was at the border before is the same; parameters are nobody's.
func (f *flows) enter(border int, before map[uintptr]*storage, elements []*torch.Tensor) {
	known := map[uintptr]*storage{}
	for id, l := range before {
		known[id] = l
	}
	for _, t := range elements {
		if t == nil {
			f.states[border] = append(f.states[border], nil)
			continue
		}
		id, bytes := t.Storage()
		l, ok := known[id]
		if !ok {
			l = &storage{bytes: bytes, first: border}
			known[id] = l
			f.storages = append(f.storages, l)
		}
		if l != nil {
			l.last = border
		}
		f.states[border] = append(f.states[border], l)
	}
}

// forward records the output of a unit that a walk has run without gradients.
func (f *flows) forward(unit int, e *segment.Execution, p *prober, list []nn.NamedLayer) {
	before := map[uintptr]*storage{}
	for k, t := range slices.Concat(p.xs, p.skips) {
		if t != nil {
			id, _ := t.Storage()
			before[id] = f.states[unit][k]
		}
	}
	for _, l := range list {
		for _, s := range l.State() {
			if s.Exists() {
				id, _ := s.Tensor().Storage()
				before[id] = nil
			}
		}
	}
	xs, skips := e.Take(unit + 1)
	f.enter(unit+1, before, slices.Concat(xs, skips))
	f.tuple[unit+1] = len(xs)
	torch.FreeAll(xs)
	torch.FreeAll(skips)
}
