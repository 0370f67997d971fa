package nn

import (
	"maps"
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

	// Memory that a layer must not overwrite
	guarded  [][]*torch.Tensor // see Guard
	storages []uintptr         // see guardStorage
	needed   []output          // see guardOutput
}

// output is a layer's output and its storage, which is its own until t is freed.
type output struct {
	t       *torch.Tensor
	storage uintptr
}

// pops says where a skip that is stashed inside is popped.
type pops struct {
	inside int  // number of pops
	leaves bool // it is popped outside as well
}

type heldSkip struct {
	t       *torch.Tensor // kept; nil if nil was stashed
	changes int64         // t.Changes when it was stashed
	pops    int           // to come
}

func newHeldSkip(t *torch.Tensor, pops int) *heldSkip {
	h := &heldSkip{t: t, pops: pops}
	if t != nil {
		h.changes = t.Changes()
	}
	return h
}

// Begin prepares an empty store for a forward of the flattened layers from <= i < to of a model
// with these routes, and returns it.
func (s *SkipStore) Begin(routes []SkipRoute, from, to int) *SkipStore {
	clear(s.stashed)
	clear(s.guarded)
	s.guarded, s.storages = s.guarded[:0], s.storages[:0]
	for _, r := range routes {
		if r.Stash < from || r.Stash >= to {
			continue
		}
		if s.stashed == nil {
			s.stashed, s.held = map[SkipKey]pops{}, map[SkipKey]*heldSkip{}
		}
		var all pops
		for _, p := range r.Pops {
			if p < to {
				all.inside++
			} else {
				all.leaves = true
			}
		}
		s.stashed[r.Key] = all
	}
	return s
}

// Give hands the store the tensors of a skip that was stashed outside, one for each pop, in the
// order of the pops; nil if nil was stashed. The store owns them. They may share memory with each
// other and with the input of this part, but not with the input of an earlier part, whose layers
// might overwrite it.
func (s *SkipStore) Give(key SkipKey, tensors ...*torch.Tensor) {
	if s.given == nil {
		s.given = map[SkipKey][]*heldSkip{}
	}
	for _, t := range tensors {
		s.given[key] = append(s.given[key], newHeldSkip(t, 1))
	}
}

// Take returns the tensor of a skip that was stashed inside and is popped outside, or nil if nil
// was stashed. The caller frees it. A second Take returns nil.
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
	for _, h := range s.all() {
		h.t.Free()
	}
	clear(s.held)
	clear(s.given)
}

func (s *SkipStore) all() []*heldSkip {
	return slices.Concat(append(slices.Collect(maps.Values(s.given)), slices.Collect(maps.Values(s.held)))...)
}

func (s *SkipStore) stash(c *Ctx, key SkipKey, t *torch.Tensor) {
	switch _, known := s.stashed[key]; {
	case !known:
		c.refuse("stash", key, "is not a skip of the model that is running")
	case s.held[key] != nil: // by an earlier forward of a module that runs several times
		c.refuse("stash", key, "is stashed again before it was popped")
	}
	if t != nil {
		own := engine.Boundary(c.Ctx, t, t)
		if own == t {
			own = engine.Branch(c.Ctx, t)
		}
		t = c.Keep(own)
	}
	s.held[key] = newHeldSkip(t, s.stashed[key].inside)
}

func (s *SkipStore) pop(c *Ctx, key SkipKey) *torch.Tensor {
	if list, ok := s.given[key]; ok && len(list) > 0 {
		list[0].unchanged(c, key)
		s.given[key] = list[1:]
		return c.Adopt(list[0].t)
	}
	h := s.held[key]
	if h == nil {
		c.refuse("pop", key, "has not been stashed; a checkpointed layer needs both ends of its skips")
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

// copyIfNeeded returns the inputs of a layer. If the layer overwrites them, tensors that will be
// popped or are guarded are replaced by copies.
func (s *SkipStore) copyIfNeeded(c *Ctx, l Layer, xs []*torch.Tensor) []*torch.Tensor {
	if len(s.held)+len(s.given)+len(s.guarded)+len(s.storages)+len(s.needed) == 0 || !overwrites(l) {
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

// guardOutput guards the output of a layer whose backward may need it, and views of guarded outputs.
func (s *SkipStore) guardOutput(c *Ctx, l Layer, ys []*torch.Tensor) {
	if !c.Grad() {
		return
	}
	s.needed = slices.DeleteFunc(s.needed, func(o output) bool { return o.t.Freed() })
	if keeps := keepsOutput(l); keeps || len(s.needed) > 0 {
		for _, y := range ys {
			if storage, _ := y.Storage(); keeps || s.isNeeded(storage) {
				s.needed = append(s.needed, output{y, storage})
			}
		}
	}
}

func (s *SkipStore) isNeeded(storage uintptr) bool {
	return slices.ContainsFunc(s.needed, func(o output) bool { return o.storage == storage && !o.t.Freed() })
}

// needs reports whether the memory of x will be popped or is guarded.
func (s *SkipStore) needs(x *torch.Tensor) bool {
	storage, _ := x.Storage()
	same := func(t *torch.Tensor) bool {
		if t == nil || t.Freed() {
			return false
		}
		at, _ := t.Storage()
		return at == storage
	}
	needed := slices.Concat(s.guarded...)
	for _, h := range s.all() {
		needed = append(needed, h.t)
	}
	return slices.Contains(s.storages, storage) || s.isNeeded(storage) || slices.ContainsFunc(needed, same)
}

// Guard protects the memory of xs for the rest of the forward: layers that declare InPlace get
// copies. Meanwhile the caller neither changes xs nor frees its tensors.
func (s *SkipStore) Guard(xs []*torch.Tensor) {
	if len(xs) > 0 {
		s.guarded = append(s.guarded, xs)
	}
}

// guardStorage is Guard for tensors whose handles are freed while their memory is needed. If the
// memory is freed early, the next tensor in it is guarded needlessly.
func (s *SkipStore) guardStorage(xs []*torch.Tensor) {
	for _, x := range xs {
		if x != nil {
			storage, _ := x.Storage()
			s.storages = append(s.storages, storage)
		}
	}
}
