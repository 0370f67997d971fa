package nn

import (
	"slices"

	"penstock.example/internal/engine"
	"penstock.example/torch"
)

// SkipStore holds the skips of one forward of a model, or of a part of one, that were stashed and
// are still to be popped. Each tensor is freed at its last pop. The store belongs to one goroutine.
// A Sequential makes its own. A pipe runs a model in parts, gives each part a store, and moves
// skips between them with Take and Give.
type SkipStore struct {
	stashed map[SkipKey]pops // by skip stashed inside
	held    map[SkipKey]*heldSkip
	given   map[SkipKey][]*heldSkip // by skip stashed outside: one for each pop to come, in order

	// Memory that a layer must not overwrite: of tensors that live as long as it is needed (Guard), and
	// of others (guard).
	guarded [][]*torch.Tensor
	memory  []uintptr
}

// pops is where a skip that is stashed inside is popped.
type pops struct {
	inside int  // how often
	leaves bool // it is popped outside as well
}

type heldSkip struct {
	t       *torch.Tensor // kept; nil when absent
	changes int64         // of t when it came
	pops    int           // to come
}

func hold(t *torch.Tensor, pops int) *heldSkip {
	h := &heldSkip{t: t, pops: pops}
	if t != nil {
		h.changes = t.Changes()
	}
	return h
}

// Begin makes a store that holds nothing ready for a forward of the flattened layers from <= i < to of a
// model with these routes, and returns it.
func (s *SkipStore) Begin(routes []SkipRoute, from, to int) *SkipStore {
	clear(s.stashed)
	clear(s.guarded)
	s.guarded, s.memory = s.guarded[:0], s.memory[:0]
	for _, r := range routes {
		if r.Stash < from || r.Stash >= to {
			continue
		}
		if s.stashed == nil {
			s.stashed, s.held = map[SkipKey]pops{}, map[SkipKey]*heldSkip{}
		}
		inside := pops{}
		for _, p := range r.Pops {
			if p < to {
				inside.inside++
			} else {
				inside.leaves = true
			}
		}
		s.stashed[r.Key] = inside
	}
	return s
}

// Give hands the store the tensors of a skip that was stashed outside: one for each pop, in their
// order, or nil if the skip is absent. The store owns them. They may share memory with each other
// and with the input of this part. They must not share memory with the input of an earlier part,
// whose layers do not know that they are still needed.
func (s *SkipStore) Give(key SkipKey, tensors ...*torch.Tensor) {
	if s.given == nil {
		s.given = map[SkipKey][]*heldSkip{}
	}
	for _, t := range tensors {
		s.given[key] = append(s.given[key], hold(t, 1))
	}
}

// Take returns the tensor of a skip that was stashed inside and is popped outside, or nil if it is
// absent. The caller frees it. A second Take returns nil.
func (s *SkipStore) Take(c *Ctx, key SkipKey) *torch.Tensor {
	h := s.held[key]
	if h == nil {
		return nil
	}
	h.unchanged(c, key)
	delete(s.held, key)
	return h.t
}

// Free frees the tensors that the store holds.
func (s *SkipStore) Free() {
	for _, h := range s.held {
		h.t.Free()
	}
	for _, list := range s.given {
		for _, h := range list {
			h.t.Free()
		}
	}
	clear(s.held)
	clear(s.given)
}

func (s *SkipStore) stash(c *Ctx, key SkipKey, t *torch.Tensor) {
	switch _, known := s.stashed[key]; {
	case !known:
		c.refuse("stash", key, "is not a skip of the model that is running")
	case s.held[key] != nil: // by an earlier forward of a module that runs several times
		c.refuse("stash", key, "is stashed again before it was popped")
	}
	if t != nil {
		own := engine.Border(c.Ctx, t, t)
		if own == t {
			own = engine.Branch(c.Ctx, t)
		}
		t = c.Keep(own)
	}
	s.held[key] = hold(t, s.stashed[key].inside)
}

func (s *SkipStore) pop(c *Ctx, key SkipKey) *torch.Tensor {
	if list, ok := s.given[key]; ok && len(list) > 0 {
		list[0].unchanged(c, key)
		s.given[key] = list[1:]
		return c.Adopt(list[0].t)
	}
	h := s.held[key]
	if h == nil {
		c.refuse("pop", key, "has not been stashed")
	}
	h.unchanged(c, key)
	h.pops--
	var t *torch.Tensor
	if h.t != nil {
		t = engine.Branch(c.Ctx, h.t)
	}
	if h.pops == 0 && !s.stashed[key].leaves {
		h.t.Free()
		delete(s.held, key)
	}
	return t
}

func (h *heldSkip) unchanged(c *Ctx, key SkipKey) {
	if h.t != nil && h.t.Changes() != h.changes {
		c.refuse("pop", key, "was overwritten in place after it was stashed; "+
			"let the layer that did it declare nn.InPlace, or stash a Clone")
	}
}

// copyIfNeeded gives a layer that overwrites its input copies of tensors that will be popped or are guarded.
func (s *SkipStore) copyIfNeeded(c *Ctx, l Layer, xs []*torch.Tensor) []*torch.Tensor {
	if len(s.held)+len(s.given)+len(s.guarded)+len(s.memory) == 0 || !overwrites(l) {
		return xs
	}
	out := slices.Clone(xs)
	for i, x := range xs {
		if s.needs(x) {
			out[i] = c.Clone(x)
		}
	}
	return out
}

// needs reports whether a later pop gives memory of x, or it is guarded.
func (s *SkipStore) needs(x *torch.Tensor) bool {
	memory, _ := x.Storage()
	same := func(t *torch.Tensor) bool {
		if t == nil || t.Freed() {
			return false
		}
		at, _ := t.Storage()
		return at == memory
	}
	holds := func(h *heldSkip) bool { return same(h.t) }
	for _, h := range s.held {
		if holds(h) {
			return true
		}
	}
	for _, list := range s.given {
		if slices.ContainsFunc(list, holds) {
			return true
		}
	}
	return slices.Contains(s.memory, memory) || slices.ContainsFunc(slices.Concat(s.guarded...), same)
}

// Guard protects the memory of xs, which will be needed again, for the rest of the forward: layers
// that declare InPlace get copies of it. The caller neither changes xs nor frees its tensors.
func (s *SkipStore) Guard(xs []*torch.Tensor) {
	if len(xs) > 0 {
		s.guarded = append(s.guarded, xs)
	}
}

// guard is Guard for tensors whose handles are freed while their memory is needed. If that is freed
// earlier, the next tensor in it is guarded too, needlessly.
func (s *SkipStore) guard(xs []*torch.Tensor) {
	for _, x := range xs {
		if x != nil {
			memory, _ := x.Storage()
			s.memory = append(s.memory, memory)
		}
	}
}
