package profile

import (
	"slices"

	"penstock.example/nn"
	"penstock.example/torch"
)

// storage is memory that holds inputs of units, or gradients of inputs.
type storage struct {
	bytes       int64
	first, last int // boundaries at which it is held; for gradients, which come down, first is the greater
}

// flows follows memory from boundary to boundary: the inputs of units forward, and their gradients
// backward. The elements of a boundary are the tuple and then the skips. The elements of its
// gradients are those of the tuple, those of each skip's pops from there on, and those of the ties
// that wait there.
type flows struct {
	st       *staged
	storages []*storage
	states   [][]*storage // by boundary, by element; nil where there is none

	tuple []int               // by boundary: elements of the tuple
	back  [kinds]gradientFlow // by remat.BackwardKind
}

func newFlows(st *staged, xs, skips []*torch.Tensor) *flows {
	n := st.s.Units()
	f := &flows{st: st, states: make([][]*storage, n+1), tuple: make([]int, n+1)}
	for k := range f.back {
		f.back[k].states = make([][]*storage, n+1)
	}
	f.enter(0, nil, slices.Concat(xs, skips))
	f.tuple[0] = len(xs)
	return f
}

// enter records the elements of a boundary. before is the memory at the boundary before, which
// stays the same storage; nil in it stands for parameters, which do not count.
func (f *flows) enter(boundary int, before map[uintptr]*storage, elements []*torch.Tensor) {
	known := map[uintptr]*storage{}
	for id, l := range before {
		known[id] = l
	}
	for _, t := range elements {
		if t == nil {
			f.states[boundary] = append(f.states[boundary], nil)
			continue
		}
		id, bytes := t.Storage()
		l, ok := known[id]
		if !ok {
			l = &storage{bytes: bytes, first: boundary}
			known[id] = l
			f.storages = append(f.storages, l)
		}
		if l != nil {
			l.last = boundary
		}
		f.states[boundary] = append(f.states[boundary], l)
	}
}

// forward records the output of a unit that was run without gradients, xs and skips.
func (f *flows) forward(unit int, xs, skips []*torch.Tensor, p *prober, list []nn.NamedLayer) {
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
	f.enter(unit+1, before, slices.Concat(xs, skips))
	f.tuple[unit+1] = len(xs)
}
