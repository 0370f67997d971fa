// Package engine has what the packages that run models need of libtorch beside package torch: gates
// between graphs, backwards that are prepared or divided, nodes whose backward is Go code,
// recomputation, memory without handles, and streams of GPUs.
package engine

import (
	"slices"
	"unsafe"

	"penstock.example/internal/shim"
	"penstock.example/torch"
)

// Mailbox returns an empty float32 tensor that requires a gradient, in which a Gate leaves its
// gradient.
func Mailbox(c *torch.Ctx) *torch.Tensor { return c.Empty(torch.Float32, 0).SetRequiresGrad(true) }

// Gate returns value's memory as the beginning of a graph. Backward leaves the gradient that
// arrives in mailbox (GradOf), with its shape, type and layout, and goes no further.
//
// The graph holds mailbox, and of value only what its operators need. mailbox may be value itself,
// if that is a leaf. Every backward through the gate replaces the gradient in the mailbox: a second
// one through a graph that was kept does not add. With grad off, or a mailbox that needs no
// gradient, the result is value, detached.
func Gate(c *torch.Ctx, mailbox, value *torch.Tensor) *torch.Tensor {
	return c.Op("penstock::gate", mailbox, value)
}

// Mailed is Gate with a mailbox of its own, in which a gradient that is not dense is left as a copy.
func Mailed(c *torch.Ctx, value *torch.Tensor) (mailbox, behind *torch.Tensor) {
	out := c.Call("penstock::mailed", value)
	return out[0].(*torch.Tensor), out[1].(*torch.Tensor)
}

// Branch returns t's memory under a node of its own. The gradients of the branch's uses are summed
// there first, and their sum joins the gradients of t's other uses. A change in place of one is a
// change of the other. A gradient that is not dense joins as a copy. With grad off it is a second
// handle on t.
func Branch(c *torch.Ctx, t *torch.Tensor) *torch.Tensor { return c.Op("penstock::branch", t) }

// Border is t as a layer gives it to another one: t itself if it is dense ([Dense]), and else a copy.
// A gradient that comes back to it is made dense in the same way before it goes on. If t is one of
// the layer's inputs and its producer does not expect dense gradients, t becomes a Branch.
func Border(c *torch.Ctx, t *torch.Tensor, inputs ...*torch.Tensor) *torch.Tensor {
	given := slices.ContainsFunc(inputs, func(x *torch.Tensor) bool { return handle(x) == t.Handle() })
	switch border(c, t, given) {
	case shim.Gaps:
		t = c.Clone(t)
		border(c, t, false)
	case shim.Foreign:
		t = Branch(c, t)
	}
	return t
}

func border(c *torch.Ctx, t *torch.Tensor, given bool) int {
	is, err := shim.Border(t.Handle(), given)
	c.Check("border", err, t)
	return is
}

// handle is t's handle, 0 for nil.
func handle(t *torch.Tensor) shim.Handle {
	if t == nil {
		return 0
	}
	return t.Handle()
}

func handlesOf(list []*torch.Tensor) []shim.Handle {
	out := make([]shim.Handle, len(list))
	for i, t := range list {
		out[i] = handle(t)
	}
	return out
}

func ownAll(c *torch.Ctx, handles []shim.Handle) []*torch.Tensor {
	out := make([]*torch.Tensor, len(handles))
	for i, h := range handles {
		out[i] = c.Own(h)
	}
	return out
}

// Dense says of a tensor with these sizes and strides whether its elements fill its memory, each once, in
// some order of dimensions. Dimensions of stride 0, along which it repeats itself, count as one element.
func Dense(shape, strides []int64) bool {
	var order []int
	for d, n := range shape {
		if n == 0 {
			return true
		}
		if n > 1 && strides[d] != 0 {
			order = append(order, d)
		}
	}
	slices.SortFunc(order, func(a, b int) int { return int(strides[a] - strides[b]) })
	next := int64(1)
	for _, d := range order {
		if strides[d] != next {
			return false
		}
		next *= shape[d]
	}
	return true
}

// Strides returns, for each dimension, the number of elements in memory from one index to the next.
func Strides(c *torch.Ctx, a *torch.Tensor) []int64 {
	out := make([]int64, len(a.Shape()))
	for d := range out {
		out[d] = c.Call("aten::stride.int", a, d)[0].(int64)
	}
	return out
}

// InMemoryOrder returns a view of one dimension of a dense tensor, in the order of addresses.
func InMemoryOrder(c *torch.Ctx, t *torch.Tensor) *torch.Tensor {
	h, err := shim.Memory(t.Handle())
	c.Check("in_memory_order", err, t)
	return c.Own(h)
}

// Hollow frees the memory of the tensors of a list that nobody uses beside it. Shapes, layouts and
// common memory stay. They have no elements until Refill. The list may contain nil and repetitions.
// Memory that others use, such as a graph or another handle, stays.
func Hollow(list []*torch.Tensor) {
	once, _ := torch.Distinct(list)
	shim.Hollow(handlesOf(slices.DeleteFunc(once, func(t *torch.Tensor) bool { return t == nil || t.Freed() })))
}

// Refill gives the tensors of a list that Hollow has emptied memory of the context's account, all zeros.
func Refill(c *torch.Ctx, list []*torch.Tensor) {
	for _, t := range list {
		if t != nil && !t.Freed() {
			c.Check("refill", shim.Refill(c.Mode(), t.Handle()), t)
		}
	}
}

// HoldStorage is Tensor.Storage with an identity that no other storage gets until drop is called, even
// if the memory is freed before. It does not keep the memory.
func HoldStorage(t *torch.Tensor) (id uintptr, bytes int64, drop func()) {
	id = shim.HoldStorage(t.Handle())
	_, bytes = t.Storage()
	return id, bytes, func() { shim.DropStorage(id) }
}

// EmptyStrided is uninitialised, with strides in elements.
func EmptyStrided(c *torch.Ctx, dtype torch.DType, shape, strides []int64) *torch.Tensor {
	return strided(c, dtype, shape, strides, c.Device(), false)
}

// EmptyPinned is EmptyStrided in memory of the host that no account counts, from which the context's
// device copies fastest.
func EmptyPinned(c *torch.Ctx, dtype torch.DType, shape, strides []int64) (t *torch.Tensor) {
	c.Unlimited(func() {
		t = strided(c, dtype, shape, strides, torch.CPU(0), c.Device().Kind != torch.KindCPU)
	})
	return t
}

func strided(c *torch.Ctx, dtype torch.DType, shape, strides []int64, on torch.Device, pinned bool) *torch.Tensor {
	none := []int64{} // nil would be None
	return c.Op("aten::empty_strided", append(none, shape...), append(none, strides...), dtype, nil, on, pinned)
}

// FromPinned is torch.From for a short vector. It goes through pinned memory of the host, so that the
// host does not wait for a GPU's copy.
func FromPinned(c *torch.Ctx, data []float32) *torch.Tensor {
	host := EmptyPinned(c, torch.Float32, []int64{int64(len(data))}, []int64{1})
	defer host.Free()
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(data))), 4*len(data))
	if err := torch.SetBytes(host, bytes); err != nil {
		panic(&torch.Error{Op: "from", Device: c.Device(), Err: err})
	}
	return copyTo(c, c.Device(), host)
}

// copyTo begins a copy to a device for which the host does not wait.
func copyTo(c *torch.Ctx, d torch.Device, a *torch.Tensor) *torch.Tensor {
	return c.Op("aten::_to_copy", a, nil, nil, d, nil, true)
}
