package nn

import (
	"maps"
	"slices"

	"penstock.example/internal/engine"
	"penstock.example/torch"
)

// SkipStore holds the skips that a forward of a model, or of a part of one, has stashed and not
// popped yet. A tensor is freed at its last pop. The store belongs to one goroutine. A Sequential
// makes its own. A pipe runs a model in parts, gives each part a store, and moves skips between the
// stores with Take and Give.
type SkipStore struct {
	pops  map[SkipKey]popCount    // of the skips that this part stashes
	held  map[SkipKey]*heldSkip   // stashed by this part
	given map[SkipKey][]*heldSkip // from other parts: one for each coming pop, in order

	// Memory that a layer must not overwrite
	guarded []uintptr     // storages, see Guard
	outputs []layerOutput // see guardOutput
}

// layerOutput is an output of a layer. Until t is freed, only t and its views have the storage.
type layerOutput struct {
	t       *torch.Tensor
	storage uintptr
}

// popCount counts the pops of a skip that this part stashes.
type popCount struct {
	inside int  // this part
	leaves bool // later parts pop the skip too
}

type heldSkip struct {
	t       *torch.Tensor // kept; nil if nil was stashed
	changes int64         // t.Changes when it was stashed
	pops    int           // to come in this part
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
	clear(s.pops)
	s.guarded = s.guarded[:0]
	for _, r := range routes {
		if r.Stash < from || r.Stash >= to {
			continue
		}
		if s.pops == nil {
			s.pops, s.held = map[SkipKey]popCount{}, map[SkipKey]*heldSkip{}
		}
		var count popCount
		for _, p := range r.Pops {
			if p < to {
				count.inside++
			} else {
				count.leaves = true
			}
		}
		s.pops[r.Key] = count
	}
	return s
}

// Give hands the store the tensors of a skip that another part has stashed, one for each pop, in
// the order of the pops; nil if nil was stashed. The store owns the tensors. Their memory may be
// shared among them and with the input of this part. It must not be the input of an earlier part,
// as layers might overwrite that input.
func (s *SkipStore) Give(key SkipKey, tensors ...*torch.Tensor) {
	if s.given == nil {
		s.given = map[SkipKey][]*heldSkip{}
	}
	for _, t := range tensors {
		s.given[key] = append(s.given[key], newHeldSkip(t, 1))
	}
}

// Take returns the tensor of a skip that this part has stashed and another part pops, or nil if nil
// was stashed. The caller frees it. A second Take returns nil.
func (s *SkipStore) Take(c *Ctx, key SkipKey) *torch.Tensor {
	h := s.held[key]
	if h == nil {
		return nil
	}
	h.mustBeUnchanged(c, key)
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
	switch _, known := s.pops[key]; {
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
	s.held[key] = newHeldSkip(t, s.pops[key].inside)
}

func (s *SkipStore) pop(c *Ctx, key SkipKey) *torch.Tensor {
	if list, ok := s.given[key]; ok && len(list) > 0 {
		list[0].mustBeUnchanged(c, key)
		s.given[key] = list[1:]
		return c.Adopt(list[0].t)
	}
	h := s.held[key]
	if h == nil {
		c.refuse("pop", key, "has not been stashed; a checkpointed layer needs both ends of its skips")
	}
	h.mustBeUnchanged(c, key)
	var t *torch.Tensor
	if h.t != nil {
		t = engine.Branch(c.Ctx, h.t)
	}
	if h.pops--; h.pops == 0 && !s.pops[key].leaves {
		h.t.Free()
		delete(s.held, key)
	}
	return t
}

func (h *heldSkip) mustBeUnchanged(c *Ctx, key SkipKey) {
	if h.t != nil && h.t.Changes() != h.changes {
		c.refuse("pop", key, "was overwritten in place after it was stashed; "+
			"let the layer that did it declare nn.InPlace, or stash a Clone")
	}
}

// copyIfNeeded returns the inputs of a layer. If the layer overwrites its inputs, copies replace
// those that will be popped or are guarded.
func (s *SkipStore) copyIfNeeded(c *Ctx, l Layer, xs []*torch.Tensor) []*torch.Tensor {
	if len(s.held)+len(s.given)+len(s.guarded)+len(s.outputs) == 0 || !overwrites(l) {
		return xs
	}
	out := slices.Clone(xs)
	for i, x := range xs {
		storage, _ := x.Storage()
		isSkip := slices.ContainsFunc(s.all(), func(h *heldSkip) bool {
			if h.t == nil {
				return false
			}
			at, _ := h.t.Storage()
			return at == storage
		})
		if isSkip || slices.Contains(s.guarded, storage) || s.isOutput(storage) {
			out[i] = c.Clone(x)
		}
	}
	return out
}

// guardOutput guards the output of a layer whose backward may need the output. It also guards an
// output that is a view of a guarded one.
func (s *SkipStore) guardOutput(c *Ctx, l Layer, ys []*torch.Tensor) {
	if !c.Grad() {
		return
	}
	s.outputs = slices.DeleteFunc(s.outputs, func(o layerOutput) bool { return o.t.Freed() })
	if keeps := keepsOutput(l); keeps || len(s.outputs) > 0 {
		for _, y := range ys {
			if storage, _ := y.Storage(); keeps || s.isOutput(storage) {
				s.outputs = append(s.outputs, layerOutput{y, storage})
			}
		}
	}
}

// isOutput reports whether a storage has a guarded output.
func (s *SkipStore) isOutput(storage uintptr) bool {
	return slices.ContainsFunc(s.outputs, func(o layerOutput) bool {
		return o.storage == storage && !o.t.Freed()
	})
}

// Guard protects the memory of xs for the rest of the forward: layers that declare InPlace get
// copies. If the memory is freed meanwhile, a later tensor in it is copied needlessly.
func (s *SkipStore) Guard(xs []*torch.Tensor) {
	for _, x := range xs {
		if x != nil {
			storage, _ := x.Storage()
			s.guarded = append(s.guarded, storage)
		}
	}
}
