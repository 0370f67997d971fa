// Package engine has functions of libtorch for packages that run models: gates between graphs,
// prepared and divided backwards, nodes with a backward in Go, recomputation, tensors without
// memory, and streams of GPUs.
package engine

import (
	"slices"
	"strings"
	"unsafe"

	"penstock.example/internal/shim"
	"penstock.example/torch"
)

// Mailbox returns an empty float32 tensor that requires a gradient. A Gate puts its gradient there.
func Mailbox(c *torch.Ctx) *torch.Tensor { return c.Empty(torch.Float32, 0).SetRequiresGrad(true) }

// Gate returns value's memory as the beginning of a graph. Backward ends there. The arriving
// gradient, with its shape, type and layout, becomes the gradient of mailbox (GradOf).
//
// The graph holds mailbox, and value only if an operator needs it. mailbox may be value itself if
// that is a leaf. Every backward through the gate replaces the gradient in the mailbox: a second
// backward through a kept graph does not add to it. With grad off, or a mailbox that needs no
// gradient, the result is value, detached.
func Gate(c *torch.Ctx, mailbox, value *torch.Tensor) *torch.Tensor {
	return c.Op("penstock::gate", mailbox, value)
}

// Mailed is Gate with a new mailbox, and makes the arriving gradient dense.
func Mailed(c *torch.Ctx, value *torch.Tensor) (mailbox, gate *torch.Tensor) {
	out := c.Call("penstock::mailed", value)
	return out[0].(*torch.Tensor), out[1].(*torch.Tensor)
}

// Branch returns t's memory under a new node. The gradients of the branch's uses are summed there,
// and the sum, made dense, is added to the gradients of t's other uses. A change in place of one is
// a change of the other. With grad off it is a second handle on t.
func Branch(c *torch.Ctx, t *torch.Tensor) *torch.Tensor { return c.Op("penstock::branch", t) }

// Root returns a tensor without memory from which backward begins as from t.
func Root(c *torch.Ctx, t *torch.Tensor) *torch.Tensor {
	defer c.SetGrad(c.SetGrad(true))
	root := Branch(c, t)
	c.SetGrad(false)
	c.Call("aten::set_data", root, c.Empty(t.DType(), 0))
	return root
}

// Boundary returns a layer's output t for the next layer: t itself if it is dense ([Dense]), or
// else a dense copy. Its gradient is made dense too. If the layer returns its input, this needs
// a [Branch], unless the graph before makes gradients dense already.
func Boundary(c *torch.Ctx, t *torch.Tensor, inputs ...*torch.Tensor) *torch.Tensor {
	given := slices.ContainsFunc(inputs,
		func(x *torch.Tensor) bool { return x != nil && x.Handle() == t.Handle() })
	switch markBoundary(c, t, given) {
	case shim.Gaps:
		t = c.Clone(t)
		markBoundary(c, t, false)
	case shim.Foreign:
		t = Branch(c, t)
	}
	return t
}

func markBoundary(c *torch.Ctx, t *torch.Tensor, given bool) int {
	is, err := shim.Border(t.Handle(), given)
	c.Check("border", err, t)
	return is
}

// Dense reports whether the elements of a tensor with these sizes and strides fill its memory, each
// once, in some order of dimensions. A dimension of stride 0 counts as one element.
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

// InMemoryOrder returns a dense tensor as a view of one dimension, in the order of addresses.
func InMemoryOrder(c *torch.Ctx, t *torch.Tensor) *torch.Tensor {
	h, err := shim.Memory(t.Handle())
	c.Check("in_memory_order", err, t)
	return c.Own(h)
}

// Distinct returns each tensor once, and for each element of list its index in once.
func Distinct(list []*torch.Tensor) (once []*torch.Tensor, at []int) {
	for _, t := range list {
		k := slices.Index(once, t)
		if k < 0 {
			k, once = len(once), append(once, t)
		}
		at = append(at, k)
	}
	return once, at
}

// Mapped returns f of each tensor. f is called once for a repeated tensor, and not for nil.
func Mapped(list []*torch.Tensor, f func(*torch.Tensor) *torch.Tensor) []*torch.Tensor {
	out := make([]*torch.Tensor, len(list))
	for i, t := range list {
		if k := slices.Index(list[:i], t); k >= 0 {
			out[i] = out[k]
		} else if t != nil {
			out[i] = f(t)
		}
	}
	return out
}

// Watch watches tensors, or nil. overwritten returns the index of one that changed since, or -1.
func Watch(list []*torch.Tensor) (overwritten func() int) {
	writes, before := torch.Writes(), make([]int64, len(list))
	for i, t := range list {
		if t != nil {
			before[i] = t.Changes()
		}
	}
	return func() int {
		now := torch.Writes()
		if now == writes {
			return -1
		}
		for i, t := range list {
			if t != nil && t.Changes() != before[i] {
				return i
			}
		}
		writes = now
		return -1
	}
}

// Hollow frees the memory of the tensors of a list, except memory that others use, such as a graph
// or another handle. Shapes, layouts and shared storages stay. The tensors have no elements until
// Refill. The list may contain nil and repetitions.
func Hollow(list []*torch.Tensor) {
	once, _ := Distinct(list)
	none := func(t *torch.Tensor) bool { return t == nil || t.Freed() }
	shim.Hollow(torch.Handles(slices.DeleteFunc(once, none)))
}

// Refill allocates zeros on the context's account for tensors that Hollow has emptied.
func Refill(c *torch.Ctx, list []*torch.Tensor) {
	for _, t := range list {
		if t != nil && !t.Freed() {
			c.Check("refill", shim.Refill(c.Mode(), t.Handle()), t)
		}
	}
}

// HoldStorage reserves the identity of a tensor's storage (Tensor.Storage): no other storage gets
// it until drop is called. The memory is not kept.
func HoldStorage(t *torch.Tensor) (drop func()) {
	id := shim.HoldStorage(t.Handle())
	return func() { shim.DropStorage(id) }
}

// EmptyStrided allocates an uninitialised tensor with strides in elements.
func EmptyStrided(c *torch.Ctx, dtype torch.DType, shape, strides []int64) *torch.Tensor {
	return strided(c, dtype, shape, strides, c.Device(), false)
}

// EmptyPinned is EmptyStrided in host memory that no account counts, pinned for copies to the
// context's device.
func EmptyPinned(c *torch.Ctx, dtype torch.DType, shape, strides []int64) (t *torch.Tensor) {
	c.Unlimited(func() {
		t = strided(c, dtype, shape, strides, torch.CPU(0), c.Device().Kind != torch.KindCPU)
	})
	return t
}

func strided(c *torch.Ctx, dtype torch.DType, shape, strides []int64, on torch.Device,
	pinned bool) *torch.Tensor {
	list := []int64{} // nil would be None
	return c.Op("aten::empty_strided", append(list, shape...), append(list, strides...), dtype, nil, on,
		pinned)
}

// FromPinned is torch.From for a short vector, through pinned memory, so that the host does not
// wait for a GPU's copy.
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

// HasOperator reports whether libtorch has an operator, by its name, such as "aten::add.Tensor".
func HasOperator(name string) bool {
	plain, overload, _ := strings.Cut(name, ".")
	_, _, err := shim.Find(plain, overload)
	return err == nil
}
