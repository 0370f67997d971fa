package torch

import (
	"fmt"
	"strings"

	"penstock.example/internal/shim"
)

// Tensor is a handle on a libtorch tensor. It belongs to the Ctx that made it and is freed with it,
// unless Ctx.Keep moved it out; then the caller of Keep calls Free. Memory that autograd has saved
// stays, as libtorch counts references.
//
// Several goroutines may read a kept tensor. A tensor that a Ctx owns stays with the Ctx's
// goroutine.
type Tensor struct {
	h     shim.Handle
	owner *Ctx // nil when kept
	slot  int  // index in owner.owned
}

// handle returns t's handle, 0 for nil. It panics if t was freed.
func (t *Tensor) handle() shim.Handle {
	if t == nil {
		return 0
	}
	if t.h == 0 {
		panic("torch: use of a freed tensor")
	}
	return t.h
}

// Handle is package shim's handle on the tensor. It panics with an *Error for nil.
func (t *Tensor) Handle() shim.Handle { return t.handleFor("handle") }

// handleFor returns t's handle for an operation that needs a tensor: nil panics with an *Error.
func (t *Tensor) handleFor(op string) shim.Handle {
	if t == nil {
		panic(&Error{Op: op, Args: Describe([]*Tensor{t}), Message: "the tensor is nil: a gradient " +
			"or a skip connection that is absent, or a tensor that was never made"})
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

// Freed reports whether the handle was released. For nil it is false.
func (t *Tensor) Freed() bool { return t != nil && t.h == 0 }

// Shape returns the sizes. The caller owns the slice.
func (t *Tensor) Shape() []int64 { return shim.Describe(t.handleFor("shape")).Shape }

// Size is the length of one dimension; a negative dim counts from the end.
func (t *Tensor) Size(dim int) int64 {
	s := t.Shape()
	if dim < -len(s) || dim >= len(s) {
		panic(&Error{Op: "size", Args: []string{t.String()},
			Message: fmt.Sprintf("dimension %d of a tensor with %d", dim, len(s))})
	}
	return s[(dim+len(s))%len(s)]
}

func (t *Tensor) Numel() int64 { return shim.Numel(t.handleFor("numel")) }
func (t *Tensor) DType() DType { return DType(shim.DType(t.handleFor("dtype"))) }

// On reports whether contexts on d can use the tensor. All CPU devices share one memory.
func (t *Tensor) On(d Device) bool {
	at := shim.Describe(t.handleFor("on"))
	return Kind(at.DeviceType) == d.Kind && (d.Kind == KindCPU || at.DeviceIndex == d.Index)
}

func (t *Tensor) Kind() Kind { return Kind(shim.Describe(t.handleFor("kind")).DeviceType) }

// RequiresGrad reports whether the tensor needs a gradient.
func (t *Tensor) RequiresGrad() bool { return shim.RequiresGrad(t.handleFor("requires_grad")) }

// IsLeaf reports whether no autograd node made the tensor.
func (t *Tensor) IsLeaf() bool { return shim.Describe(t.handleFor("is_leaf")).Leaf }

// Changes counts the changes in place of the tensor and all its views.
func (t *Tensor) Changes() int64 { return shim.Changes(t.handleFor("changes")) }

// Storage returns the identity and the size of the tensor's memory, which its views share.
func (t *Tensor) Storage() (id uintptr, bytes int64) { return shim.Storage(t.handleFor("storage")) }

// String returns type and shape, such as "float32[8,16]".
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
