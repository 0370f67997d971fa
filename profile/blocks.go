package profile

import (
	"maps"
	"slices"

	"penstock.example/nn"
	"penstock.example/remat"
	"penstock.example/torch"
)

// blocks is the memory of the inputs of a stage's units, or of their gradients, by boundary. If
// elements share a block it counts once. Parameters and their gradients do not count.
type blocks struct {
	remat.Blocks
	known map[uintptr]int // the blocks at the boundary that was noted last, by storage
}

// note numbers the blocks of the elements at a boundary, next to the boundary noted last. Absent
// elements (nil) and the memory of weights have no number.
func (b *blocks) note(boundary int, elements, weights []*torch.Tensor) {
	blocks, now, numbers := map[uintptr]int{}, map[uintptr]int{}, make([]int, len(elements))
	for _, t := range weights {
		id, _ := t.Storage()
		blocks[id] = -1
	}
	maps.Copy(blocks, b.known)
	for k, t := range elements {
		if numbers[k] = -1; t == nil {
			continue
		}
		id, bytes := t.Storage()
		if _, known := blocks[id]; !known {
			blocks[id], b.Bytes = len(b.Bytes), append(b.Bytes, bytes)
		}
		numbers[k], now[id] = blocks[id], blocks[id]
	}
	b.At[boundary], b.known = numbers, now
}

// fresh returns the bytes at a boundary that are not at the boundary before.
func (b *blocks) fresh(boundary, before int) (bytes int64) {
	list := slices.Clone(b.At[boundary])
	return b.bytesOf(slices.DeleteFunc(list, func(k int) bool { return slices.Contains(b.At[before], k) }))
}

func (b *blocks) bytesOf(list []int) (bytes int64) {
	for i, k := range list {
		if k >= 0 && !slices.Contains(list[:i], k) {
			bytes += b.Bytes[k]
		}
	}
	return bytes
}

// elements are the tensors at a boundary of a stage: a tuple, and skips that the stage stashes or
// pops. There is a gradient for each element of the tuple, for each later pop of a skip, and for
// each tie, a parameter that units on both sides of the boundary use.
type elements struct {
	tuple  int   // its length
	places []int // by skip: its place at the boundary
	stash  []int // by skip: the unit that stashes it
	pops   []int // by skip: the number of later pops
	ties   []int // of the segment
}

func (w *sweep) elements(st *stage, boundary int) elements {
	out := elements{tuple: w.tuples[boundary]}
	for place, c := range w.s.Crossing(boundary) {
		pops := len(c.Pops)
		if c.Stash < st.first { // later stages get a skip from its stage, not through this one
			pops, _ = slices.BinarySearch(c.Pops, st.last)
		}
		if pops > 0 {
			out.places, out.stash = append(out.places, place), append(out.stash, c.Stash)
			out.pops = append(out.pops, pops)
		}
	}
	waiting := w.s.Tied(boundary)
	for _, k := range st.ties {
		if slices.Contains(waiting, k) {
			out.ties = append(out.ties, k)
		}
	}
	return out
}

// values are the tensors of the elements in an input.
func (n elements) values(in input) []*torch.Tensor {
	list := slices.Clone(in.xs)
	for _, place := range n.places {
		list = append(list, in.skips[place])
	}
	return list
}

// parcel sorts the blocks of sent elements into tuple, skips and ties. at has them in the order of
// elements.values, or for gradients of gradients.list.
func (n elements) parcel(at []int, areGradients bool) remat.Parcel {
	out := remat.Parcel{Tuple: at[:n.tuple]}
	at = at[n.tuple:]
	for _, k := range n.pops {
		if !areGradients {
			k = 1
		}
		out.Skips, at = append(out.Skips, at[:k]), at[k:]
	}
	out.Ties = at
	return out
}

// gradients are the gradients of an execution at a boundary.
type gradients struct {
	xs    []*torch.Tensor
	skips [][]*torch.Tensor // by place, by pop
	ties  []*torch.Tensor   // by tie
}

// gradients returns the gradients at a boundary, which the execution keeps.
func (w *sweep) gradients(kind remat.BackwardKind, boundary int) (g gradients) {
	e := &w.between[kind]
	g.xs, g.skips = e.TakeGrads(boundary)
	e.GiveGrads(boundary, g.xs, g.skips)
	g.ties = make([]*torch.Tensor, w.s.Ties())
	for _, k := range w.s.Tied(boundary) {
		g.ties[k] = e.TakeTie(k)
		e.GiveTie(k, g.ties[k])
	}
	return g
}

func (g gradients) all() []*torch.Tensor {
	return slices.Concat(append(g.skips, g.xs, g.ties)...)
}

// list returns the gradients of elements; absent ones are nil.
func (g gradients) list(n elements) []*torch.Tensor {
	out := make([]*torch.Tensor, n.tuple)
	copy(out, g.xs)
	for i, place := range n.places {
		pops := make([]*torch.Tensor, n.pops[i])
		if place < len(g.skips) {
			copy(pops, g.skips[place])
		}
		out = append(out, pops...)
	}
	for _, k := range n.ties {
		out = append(out, g.ties[k])
	}
	return out
}

func state(list []nn.NamedLayer) (all []nn.NamedParam) {
	for _, l := range list {
		all = append(all, l.State()...)
	}
	return all
}

// weights returns the parameters and buffers of layers, and the gradients.
func (p *prober) weights(list []nn.NamedLayer) (all []*torch.Tensor) {
	for _, s := range state(list) {
		if s.Exists() {
			all = append(all, s.Tensor())
		}
		if s.Trainable() && s.Tensor().HasGrad() {
			all = append(all, p.c.GradOf(s.Tensor()))
		}
	}
	return all
}

func zeroGrads(list []nn.NamedLayer) {
	for _, s := range state(list) {
		if s.Trainable() {
			s.Tensor().SetGradOf(nil)
		}
	}
}

// gradBytes returns the bytes of the gradients of the layers' parameters. Shared ones count once.
func gradBytes(list []nn.NamedLayer) (sum int64) {
	seen := map[*nn.Param]bool{}
	for _, s := range state(list) {
		if s.Trainable() && !seen[s.Owner()] && s.Tensor().HasGrad() {
			seen[s.Owner()] = true
			sum += s.Owner().Bytes()
		}
	}
	return sum
}
