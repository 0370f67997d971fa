package profile

import (
	"slices"

	"penstock.example/nn"
	"penstock.example/segment"
	"penstock.example/torch"
)

// staged is a stage that is measured: forwards first, unit by unit, over all stages of the model,
// then backwards, from the last unit of the last stage to the first unit of the first. So every
// backward gets the gradients that the units after it have left: which of them it copies, and where
// it can add in place, depends on their layout and on what else lies in their memory.
type staged struct {
	number      int // of the stage
	first, last int // layers of the model
	units       []int
	s           *segment.Segment
	inputGrad   bool // the gradient of the stage's input is wanted
	flows       *flows
	all         []figures
	held        map[int]input // inputs of some units, from which those of the others are made again
	beyond      []int         // by skip at the last boundary: how often later stages pop it
	ties        []tied
	next        *staged // the stage after it, if that is on the same device

	given, gives, skipsIn, skipsOut int64 // bytes
}

// tied is a parameter that several layers of the model use, in a stage. Ties are numbered as those of
// the stage's segment.
type tied struct {
	owner          *nn.Param
	first, last    int  // units of the stage that use it
	earlier, later bool // another stage does
}

// input is the input of a unit. It owns its tensors.
type input struct{ xs, skips []*torch.Tensor }

func (b *input) free() {
	torch.FreeAll(b.xs)
	torch.FreeAll(b.skips)
	*b = input{}
}

// figures are the measurements of a unit.
type figures struct {
	name string
	list []nn.NamedLayer
	// keep and save are forwards without and with gradients, by remat.Run.
	keep, save [runs]reading
	backs      [kinds]backReading // by remat.BackwardKind
	statistics int64              // bytes that a first forward gathers for deferred batch norms
	commit     int64              // the most when these are over
	passes     bool               // the unit has no backward
	share      float64            // of the second part of a backward in its time
	leaves     deferredMemory     // to second parts
	times      unitTimes
}

// stage prepares the measurement of a stage.
func (p *prober) stage(number, first, last int, units []int) (st *staged, err error) {
	st = &staged{number: number, first: first, last: last, units: units, held: map[int]input{}}
	st.inputGrad = p.InputGrad || slices.ContainsFunc(p.layers[:first], func(l nn.NamedLayer) bool { return len(nn.Params(l.Layer)) > 0 })
	p.inputGrad = st.inputGrad
	if st.s, err = p.segment(first, last, units); err != nil {
		return nil, err
	}
	p.s = st.s
	at := first
	for _, n := range units {
		list := p.layers[at : at+n]
		st.all = append(st.all, figures{name: nameOf(list), list: list})
		at += n
	}
	st.beyond = make([]int, len(st.s.Crossing(len(units))))
	for _, r := range p.routes {
		if at := st.s.Leaves(r.Key); at >= 0 {
			for _, layer := range r.Pops {
				if layer >= last {
					st.beyond[at]++
				}
			}
		}
	}
	st.tie(p.layers[:p.model])
	return st, nil
}

// tie finds the stage's ties.
func (st *staged) tie(layers []nn.NamedLayer) {
	index := map[*nn.Param]int{}
	for _, l := range layers[st.first:min(st.last, len(layers))] {
		for _, q := range nn.Shared(l.Layer) {
			if _, known := index[q.Owner()]; !known {
				index[q.Owner()] = len(st.ties)
				st.ties = append(st.ties, tied{owner: q.Owner(), first: -1})
			}
		}
	}
	for k := range st.ties {
		t := &st.ties[k]
		for unit := range st.units {
			if st.s.Uses(unit, k) {
				if t.last = unit; t.first < 0 {
					t.first = unit
				}
			}
		}
	}
	for i, l := range layers {
		if st.first <= i && i < st.last {
			continue
		}
		for _, q := range nn.Shared(l.Layer) {
			if k, known := index[q.Owner()]; known {
				st.ties[k].earlier = st.ties[k].earlier || i < st.first
				st.ties[k].later = st.ties[k].later || i >= st.last
			}
		}
	}
}

// nameOf names a unit after its only layer, or after its first and its last.
func nameOf(list []nn.NamedLayer) string {
	if len(list) == 1 {
		return list[0].Name
	}
	return list[0].Name + ".." + list[len(list)-1].Name
}

// sizeOf is the bytes of the memory of tensors. Memory that several share counts once.
func sizeOf(list []*torch.Tensor) (sum int64) {
	seen := map[uintptr]bool{}
	for _, t := range list {
		if t == nil {
			continue
		}
		if id, bytes := t.Storage(); !seen[id] {
			seen[id] = true
			sum += bytes
		}
	}
	return sum
}

// apart says whether two stages are on different devices, between which everything is copied.
func (p *prober) apart(a, b int) bool {
	return p.Workers == nil || p.Workers[a] != p.Workers[b]
}

// free frees what is held of a stage.
func (st *staged) free() {
	for i, in := range st.held {
		in.free()
		delete(st.held, i)
	}
}
