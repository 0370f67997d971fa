package torch

import (
	"slices"

	"penstock.example/internal/shim"
)

var (
	opEmpty      = declare("aten::empty.memory_format(int[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None) -> Tensor")
	opZeros      = declare("aten::zeros(int[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None) -> Tensor")
	opOnes       = declare("aten::ones(int[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None) -> Tensor")
	opEye        = declare("aten::eye(int n, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None) -> Tensor")
	opEmptyLike  = declare("aten::empty_like(Tensor self) -> Tensor")
	opZerosLike  = declare("aten::zeros_like(Tensor self) -> Tensor")
	opOnesLike   = declare("aten::ones_like(Tensor self) -> Tensor")
	opZero_      = declare("aten::zero_(Tensor(a!) self) -> Tensor(a!)")
	opFill_      = declare("aten::fill_.Scalar(Tensor(a!) self, Scalar value) -> Tensor(a!)")
	opCopy_      = declare("aten::copy_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)")
	opClone      = declare("aten::clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor")
	opDetach     = declare("aten::detach(Tensor(a) self) -> Tensor(a)")
	opToCopy     = declare("aten::_to_copy(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None) -> Tensor")
	opGate       = declare("penstock::gate(Tensor mailbox, Tensor value) -> Tensor")
	opMailed     = declare("penstock::mailed(Tensor value) -> (Tensor mailbox, Tensor behind)")
	opBranch     = declare("penstock::branch(Tensor self) -> Tensor")
	opTransfer   = declare("penstock::transfer(Tensor self, Device device) -> Tensor")
	opToDevice   = declare("aten::_to_copy(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, bool non_blocking=False) -> Tensor")
	opTransferTo = declare("penstock::transfer_memory(Tensor self, Device device) -> Tensor")
	opTransferIn = declare("penstock::transfer_into(Tensor(a!) into, Tensor self) -> ()")
	opViewType   = declare("aten::view.dtype(Tensor(a) self, ScalarType dtype) -> Tensor(a)")
	opReshape    = declare("aten::reshape(Tensor(a) self, int[] shape) -> Tensor(a)")
	opFlatten    = declare("aten::flatten.using_ints(Tensor(a) self, int start_dim=0, int end_dim=-1) -> Tensor(a)")
	opTranspose  = declare("aten::transpose.int(Tensor(a) self, int dim0, int dim1) -> Tensor(a)")
	opNarrow     = declare("penstock::narrow(Tensor(a) self, int dim, int start, int length) -> Tensor(a)")
	opSplit      = declare("aten::split.Tensor(Tensor(a -> *) self, int split_size, int dim=0) -> Tensor(a)[]")
	opCat        = declare("aten::cat(Tensor[] tensors, int dim=0) -> Tensor")
	opPad        = declare("aten::constant_pad_nd(Tensor self, int[] pad, Scalar value=0) -> Tensor")
	opTriu       = declare("aten::triu(Tensor self, int diagonal=0) -> Tensor")
	opContiguous = declare("aten::contiguous(Tensor(a) self) -> Tensor(a)")
	opStride     = declare("aten::stride.int(Tensor self, int dim) -> int")
	opStrided    = declare("aten::empty_strided(int[] size, int[] stride, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor")
	opExpand     = declare("aten::expand(Tensor(a) self, int[] size, *, bool implicit=False) -> Tensor(a)")
	opBernoulli_ = declare("aten::bernoulli_.float(Tensor(a!) self, float p=0.5, *, Generator? generator=None) -> Tensor(a!)")
	opUniform_   = declare("aten::uniform_(Tensor(a!) self, float from=0., float to=1., *, Generator? generator=None) -> Tensor(a!)")
	opNormal_    = declare("aten::normal_(Tensor(a!) self, float mean=0., float std=1., *, Generator? generator=None) -> Tensor(a!)")
)

// Empty is aten::empty: uninitialised.
func (c *Ctx) Empty(dtype DType, shape ...int64) *Tensor { return c.factory(opEmpty, dtype, shape) }

// EmptyStrided is aten::empty_strided: uninitialised, with strides in elements.
func (c *Ctx) EmptyStrided(dtype DType, shape, strides []int64) *Tensor {
	return c.strided(dtype, shape, strides, c.device).none().one()
}

// EmptyPinned is EmptyStrided in memory of the host that no account counts, from which the context's
// device copies fastest.
func (c *Ctx) EmptyPinned(dtype DType, shape, strides []int64) (t *Tensor) {
	c.Unlimited(func() { t = c.strided(dtype, shape, strides, CPU(0)).b(c.device.Kind != KindCPU).one() })
	return t
}

func (c *Ctx) strided(dtype DType, shape, strides []int64, d Device) *encoder {
	if len(shape) == 0 {
		shape, strides = []int64{}, []int64{}
	}
	return c.begin(opStrided).is(shape).is(strides).dtype(dtype).none().device(d)
}

// Strides returns, for each dimension, the number of elements in memory from one index to the next.
func (c *Ctx) Strides(a *Tensor) []int64 {
	out := make([]int64, len(a.Shape()))
	for d := range out {
		out[d] = int64(c.begin(opStride).t(a).i(int64(d)).run()[1])
	}
	return out
}

// Expand is aten::expand: a view in which dimensions of one element repeat it.
func (c *Ctx) Expand(a *Tensor, shape ...int64) *Tensor {
	return c.begin(opExpand).t(a).is(shape).one()
}

// Zeros is aten::zeros.
func (c *Ctx) Zeros(dtype DType, shape ...int64) *Tensor { return c.factory(opZeros, dtype, shape) }

// Ones is aten::ones.
func (c *Ctx) Ones(dtype DType, shape ...int64) *Tensor { return c.factory(opOnes, dtype, shape) }

// Randn returns float32 numbers from the normal distribution of mean 0 and deviation 1. They follow
// from Options.Seed and from how many tensors the context has drawn before, so the same program
// gets the same numbers.
func (c *Ctx) Randn(shape ...int64) *Tensor { return c.Normal_(c.Empty(Float32, shape...), 0, 1) }

func (c *Ctx) factory(op *operator, dtype DType, shape []int64) *Tensor {
	if shape == nil {
		shape = []int64{}
	}
	return c.begin(op).is(shape).dtype(dtype).none().device(c.device).one()
}

// Eye is aten::eye: the identity matrix of n rows.
func (c *Ctx) Eye(dtype DType, n int64) *Tensor {
	return c.begin(opEye).i(n).dtype(dtype).none().device(c.device).one()
}

// EmptyLike is aten::empty_like.
func (c *Ctx) EmptyLike(a *Tensor) *Tensor { return c.begin(opEmptyLike).t(a).one() }

// ZerosLike is aten::zeros_like.
func (c *Ctx) ZerosLike(a *Tensor) *Tensor { return c.begin(opZerosLike).t(a).one() }

// OnesLike is aten::ones_like.
func (c *Ctx) OnesLike(a *Tensor) *Tensor { return c.begin(opOnesLike).t(a).one() }

// Zero_ is aten::zero_.
func (c *Ctx) Zero_(a *Tensor) *Tensor { return c.begin(opZero_).t(a).same(a) }

// Fill_ is aten::fill_.Scalar.
func (c *Ctx) Fill_(a *Tensor, v float64) *Tensor { return c.begin(opFill_).t(a).f(v).same(a) }

// Copy_ is aten::copy_: overwrites a with b, converting and broadcasting.
func (c *Ctx) Copy_(a, b *Tensor) *Tensor { return c.begin(opCopy_).t(a).t(b).same(a) }

// Clone is aten::clone: new memory on the context's account, same strides where they are dense.
func (c *Ctx) Clone(a *Tensor) *Tensor { return c.begin(opClone).t(a).one() }

// Detach is aten::detach: the same memory, outside the graph.
func (c *Ctx) Detach(a *Tensor) *Tensor { return c.begin(opDetach).t(a).one() }

// To is aten::_to_copy to another element type: always new memory.
func (c *Ctx) To(a *Tensor, dtype DType) *Tensor { return c.begin(opToCopy).t(a).dtype(dtype).one() }

// View is aten::view.dtype: the memory of a vector, taken for elements of another type.
func (c *Ctx) View(a *Tensor, dtype DType) *Tensor {
	return c.begin(opViewType).t(a).dtype(dtype).one()
}

// CopyHere copies a, outside the graph, to the context's device and account. It is the transfer
// between devices.
func (c *Ctx) CopyHere(a *Tensor) *Tensor {
	var out *Tensor
	c.NoGrad(func() { out = c.begin(opTransfer).t(a).device(c.device).one() })
	return out
}

// Mailbox returns an empty float32 tensor that requires a gradient, in which a Gate leaves its
// gradient.
func (c *Ctx) Mailbox() *Tensor { return c.Empty(Float32, 0).SetRequiresGrad(true) }

// Gate returns value's memory as the beginning of a graph. Backward leaves the gradient that
// arrives in mailbox (GradOf), with its shape, type and layout, and goes no further.
//
// The graph holds mailbox, and of value only what its operators need. mailbox may be value itself,
// if that is a leaf. Every backward through the gate replaces the gradient in the mailbox: a second
// one through a graph that was kept does not add. With grad off, or a mailbox that needs no
// gradient, the result is value, detached.
func (c *Ctx) Gate(mailbox, value *Tensor) *Tensor {
	return c.begin(opGate).t(mailbox).t(value).one()
}

// Mailed is Gate with a mailbox of its own, in which a gradient that is not dense is left as a copy.
func (c *Ctx) Mailed(value *Tensor) (mailbox, behind *Tensor) {
	w := c.begin(opMailed).t(value).run()
	return c.own(shim.Handle(w[1])), c.own(shim.Handle(w[3]))
}

// Branch returns t's memory under a node of its own. The gradients of the branch's uses are summed
// there first, and their sum joins the gradients of t's other uses. A change in place of one is a
// change of the other. A gradient that is not dense joins as a copy. With grad off it is a second
// handle on t.
func (c *Ctx) Branch(t *Tensor) *Tensor { return c.begin(opBranch).t(t).one() }

// Border is t as a layer gives it to another one: t itself if it is dense ([Dense]), and else a copy.
// A gradient that comes back to it is made dense in the same way before it goes on. Where t is one of
// the layer's inputs, what made that is left as it is: if it does not expect dense gradients, t becomes
// a Branch.
func (c *Ctx) Border(t *Tensor, inputs ...*Tensor) *Tensor {
	given := slices.ContainsFunc(inputs, func(x *Tensor) bool { return x != nil && x.h == t.h })
	switch c.border(t, given) {
	case shim.Gaps:
		t = c.Clone(t)
		c.border(t, false)
	case shim.Foreign:
		t = c.Branch(t)
	}
	return t
}

func (c *Ctx) border(t *Tensor, given bool) int {
	is, err := shim.Border(t.given("border"), given)
	if err != nil {
		panic(&Error{Op: "border", Args: []string{t.String()}, Device: c.Device(), Message: err.Message})
	}
	return is
}

// Reshape is aten::reshape; one size may be -1. No sizes make a number of a tensor of one element.
func (c *Ctx) Reshape(a *Tensor, shape ...int64) *Tensor {
	if shape == nil {
		shape = []int64{} // nil is None
	}
	return c.begin(opReshape).t(a).is(shape).one()
}

// Flatten is aten::flatten.using_ints.
func (c *Ctx) Flatten(a *Tensor, start, end int64) *Tensor {
	return c.begin(opFlatten).t(a).i(start).i(end).one()
}

// Transpose is aten::transpose.int.
func (c *Ctx) Transpose(a *Tensor, i, j int64) *Tensor {
	return c.begin(opTranspose).t(a).i(i).i(j).one()
}

// Narrow is penstock::narrow, an aten::narrow that is quicker without a graph: a view of length entries of
// a dimension from start.
func (c *Ctx) Narrow(a *Tensor, dim, start, length int64) *Tensor {
	return c.begin(opNarrow).t(a).i(dim).i(start).i(length).one()
}

// Split is aten::split.Tensor: views of at most size entries along a dimension.
func (c *Ctx) Split(a *Tensor, size, dim int64) []*Tensor {
	return c.begin(opSplit).t(a).i(size).i(dim).list()
}

// Cat is aten::cat along a dimension.
func (c *Ctx) Cat(list []*Tensor, dim int64) *Tensor { return c.begin(opCat).ts(list).i(dim).one() }

// Pad is aten::constant_pad_nd: value around a, in pairs of before and after from the last
// dimension on.
func (c *Ctx) Pad(a *Tensor, pad []int64, value float64) *Tensor {
	return c.begin(opPad).t(a).is(pad).f(value).one()
}

// Triu is aten::triu: the elements on and above a diagonal.
func (c *Ctx) Triu(a *Tensor, diagonal int64) *Tensor { return c.begin(opTriu).t(a).i(diagonal).one() }

// Contiguous is aten::contiguous: row-major, the same memory if it already is.
func (c *Ctx) Contiguous(a *Tensor) *Tensor { return c.begin(opContiguous).t(a).one() }

// Bernoulli_ is aten::bernoulli_.float with a generator of the next seed: one with probability p,
// else zero.
func (c *Ctx) Bernoulli_(a *Tensor, p float64) *Tensor {
	return c.begin(opBernoulli_).t(a).f(p).seed(c.NextSeed()).same(a)
}

// Uniform_ is aten::uniform_ with a generator of the next seed.
func (c *Ctx) Uniform_(a *Tensor, from, to float64) *Tensor {
	return c.begin(opUniform_).t(a).f(from).f(to).seed(c.NextSeed()).same(a)
}

// Normal_ is aten::normal_ with a generator of the next seed.
func (c *Ctx) Normal_(a *Tensor, mean, std float64) *Tensor {
	return c.begin(opNormal_).t(a).f(mean).f(std).seed(c.NextSeed()).same(a)
}
