package torch

import (
	"fmt"
	"slices"
	"strings"

	"penstock.example/internal/shim"
)

// Tensor is a handle on a libtorch tensor. It belongs to the Ctx that made it and is freed with it,
// unless Ctx.Keep moved it out; then whoever kept it calls Free. Freeing a handle never frees what
// autograd saved: libtorch counts references.
//
// Reading a kept tensor from several goroutines is safe; a tensor that a Ctx owns stays with that
// Ctx's goroutine.
type Tensor struct {
	h     shim.Handle
	owner *Ctx // nil when kept
	slot  int  // index in owner.owned
}

// handle is t's handle, 0 for nil. Using a freed tensor is a programming error and panics.
func (t *Tensor) handle() shim.Handle {
	if t == nil {
		return 0
	}
	if t.h == 0 {
		panic("torch: use of a freed tensor")
	}
	return t.h
}

// Handle is what package shim knows the tensor by. It panics with an *Error for nil.
func (t *Tensor) Handle() shim.Handle { return t.given("handle") }

// given is t's handle for what needs a tensor: nil panics with an *Error.
func (t *Tensor) given(what string) shim.Handle {
	if t == nil {
		panic(&Error{Op: what, Args: Describe([]*Tensor{t}), Message: "the tensor is nil: a gradient " +
			"or a skip " +
			"connection that is absent, or a tensor that was never made"})
	}
	return t.handle()
}

// Free releases the handle now. It is idempotent and safe on nil.
func (t *Tensor) Free() {
	if t == nil || t.h == 0 {
		return
	}
	if t.owner != nil {
		t.owner.owned[t.slot] = nil
		t.owner = nil
	}
	forget(t)
	shim.Release(t.h)
	t.h = 0
}

// FreeAll frees each tensor of a list, which may contain nil and repetitions.
func FreeAll(list []*Tensor) {
	for _, t := range list {
		t.Free()
	}
}

// Distinct returns each tensor once and, by element of list, its index among those.
func Distinct(list []*Tensor) (once []*Tensor, at []int) {
	for _, t := range list {
		k := slices.Index(once, t)
		if k < 0 {
			k, once = len(once), append(once, t)
		}
		at = append(at, k)
	}
	return once, at
}

// Freed says whether the handle was released. Nil was not.
func (t *Tensor) Freed() bool { return t != nil && t.h == 0 }

// Shape is the tensor's sizes. The caller owns the slice.
func (t *Tensor) Shape() []int64 { return shim.Describe(t.given("shape")).Shape }

// Size is the length of one dimension; negative ones count from the end.
func (t *Tensor) Size(dim int) int64 {
	s := t.Shape()
	if dim < -len(s) || dim >= len(s) {
		panic(&Error{Op: "size", Args: []string{t.String()},
			Message: fmt.Sprintf("dimension %d of a tensor with %d", dim, len(s))})
	}
	return s[(dim+len(s))%len(s)]
}

// Numel is the number of elements.
func (t *Tensor) Numel() int64 { return shim.Numel(t.given("numel")) }
func (t *Tensor) DType() DType { return DType(shim.DType(t.given("dtype"))) }

// On reports whether operators of a context on d can use the tensor: it is on that GPU, or in the memory
// of the CPU, which all CPU devices share.
func (t *Tensor) On(d Device) bool {
	at := shim.Describe(t.given("place"))
	return Kind(at.DeviceType) == d.Kind && (d.Kind == KindCPU || at.DeviceIndex == d.Index)
}

// Kind is the kind of device that the tensor lives on.
func (t *Tensor) Kind() Kind { return Kind(shim.Describe(t.given("kind")).DeviceType) }

// RequiresGrad says whether autograd follows the tensor.
func (t *Tensor) RequiresGrad() bool { return shim.RequiresGrad(t.given("requires_grad")) }

// IsLeaf says whether no operator recorded how the tensor was made.
func (t *Tensor) IsLeaf() bool { return shim.Describe(t.given("is_leaf")).Leaf }

// Changes returns how often the memory of the tensor and of all its views was changed in place.
func (t *Tensor) Changes() int64 { return shim.Changes(t.given("changes")) }

// Storage identifies the memory of the tensor and gives its size in bytes. Views of one storage
// share the identity.
func (t *Tensor) Storage() (id uintptr, bytes int64) {
	return shim.Storage(t.given("storage"))
}

// String is the tensor's type and shape, such as "float32[8,16]".
func (t *Tensor) String() string {
	switch {
	case t == nil:
		return "none"
	case t.h == 0:
		return "freed"
	}
	d := shim.Describe(t.h)
	return DType(d.DType).String() + strings.ReplaceAll(fmt.Sprint(d.Shape), " ", ",")
}
