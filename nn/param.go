package nn

import (
	"slices"

	"penstock.example/torch"
)

// Param is a parameter or a buffer: declared with a shape and an initialiser, allocated by
// Materialise.
type Param struct {
	shape     []int64
	dtype     torch.DType
	init      Init
	trainable bool
	buffer    bool
	value     *torch.Tensor
	owner     *Param // of a tie, which has nothing of its own but a replica; nil for a parameter itself
	ties      int
	replica   *torch.Tensor
}

// tie makes another handle on the parameter.
func (p *Param) tie() *Param {
	require(p != nil, "Share: the parameter is nil; a layer made without it has none to share")
	owner := p.Owner()
	owner.ties++
	return &Param{shape: owner.shape, dtype: owner.dtype, buffer: owner.buffer, owner: owner}
}

// Owner is the parameter that a handle made by Base.Share stands for, and p itself if it is none.
func (p *Param) Owner() *Param {
	if p.owner != nil {
		return p.owner
	}
	return p
}

// Shared reports whether more than one module uses the parameter.
func (p *Param) Shared() bool { return p.Owner().ties > 0 }

// Replicate gives a parameter, or a handle on a shared one, a replica of the value: a leaf with a gradient
// of its own. Nil removes it. The replica stays the caller's, who keeps it equal to the value and adds
// its gradient to the value's. A pipe uses replicas to put a parameter on two stages, and package
// profile to measure a layer on another device than its parameters are on.
func (p *Param) Replicate(t *torch.Tensor) {
	if t != nil {
		p.mustHold(t)
	}
	p.replica = t
}

// Replica is the replica that Replicate set, or nil.
func (p *Param) Replica() *torch.Tensor { return p.replica }

// Shape is the declared shape. The caller must not change it.
func (p *Param) Shape() []int64 { return p.shape }

// Numel is the number of elements.
func (p *Param) Numel() int64 {
	n := int64(1)
	for _, s := range p.shape {
		n *= s
	}
	return n
}

// Bytes is the size of the value.
func (p *Param) Bytes() int64       { return p.Numel() * p.DType().Size() }
func (p *Param) DType() torch.DType { return p.Owner().dtype }

// IsBuffer reports whether the parameter is saved but never trained, Trainable whether it has a gradient.
func (p *Param) IsBuffer() bool  { return p.buffer }
func (p *Param) Trainable() bool { return p.Owner().trainable }

// SetTrainable makes the parameter a constant, and drops its gradient, or trainable again. A buffer never
// is. It is called between runs.
func (p *Param) SetTrainable(on bool) {
	p = p.Owner()
	p.trainable = on && !p.buffer
	if p.value == nil {
		return
	}
	if !p.trainable {
		p.value.SetGradOf(nil)
	}
	p.value.SetRequiresGrad(p.trainable)
}

// SetInit replaces the initialiser, for networks whose layers start from other values than their
// defaults. Call it before the parameter is materialised.
func (p *Param) SetInit(init Init) {
	p.Owner().init = init
}

// Tensor is the value, owned by the model; nil for a nil Param, so that optional parameters pass
// straight to operators.
func (p *Param) Tensor() *torch.Tensor {
	if p == nil {
		return nil
	}
	if p.replica != nil {
		return p.replica
	}
	if p = p.Owner(); p.value == nil {
		panic("nn: a parameter is used before it exists; call nn.Materialise or pipe.New first, " +
			"and declare the layer that has it with Child, or it is no part of the model")
	}
	return p.value
}

// Exists reports whether the parameter is materialised.
func (p *Param) Exists() bool { return p.Owner().value != nil }

// SetTensor puts t in place of the value; the model owns t from now on and the old value is freed
// with its gradient.
func (p *Param) SetTensor(t *torch.Tensor) {
	p = p.Owner()
	p.mustHold(t)
	p.Free()
	p.value = t.SetRequiresGrad(p.trainable)
}

func (p *Param) mustHold(t *torch.Tensor) {
	require(slices.Equal(t.Shape(), p.shape) && t.DType() == p.DType(),
		"a parameter of %v%v cannot hold %v", p.DType(), p.shape, t)
}

// Free frees the value and its gradient. The parameter can be materialised again.
func (p *Param) Free() {
	if p = p.Owner(); p.value == nil {
		return
	}
	p.value.SetGradOf(nil)
	p.value.Free()
	p.value = nil
}

// Materialise allocates those of params that do not exist yet, on the context's device, and
// initialises them. Each is drawn from a seed that is derived from its full name, so its values do
// not depend on order, partition or device.
func Materialise(c *torch.Ctx, params []NamedParam, seed uint64) {
	keepSeed, keepDraws := c.Draws()
	defer c.ResumeDraws(keepSeed, keepDraws)
	c.NoGrad(func() {
		for _, n := range params {
			p := n.Owner()
			if p.Exists() {
				continue
			}
			c.SetSeed(torch.Mix(seed, hashOn(fnvOffset, n.Name)))
			mark := c.Mark()
			t := c.Empty(p.dtype, p.shape...)
			p.Owner().init(c, t) // a handle made by Share has none
			c.Keep(t)
			c.Release(mark)
			p.SetTensor(t)
		}
	})
}

// Convert gives the floating-point ones of params another element type. Values that exist are
// converted on the context's device; their gradients are dropped.
func Convert(c *torch.Ctx, params []NamedParam, dtype torch.DType) {
	for _, n := range params {
		p := n.Owner()
		if !p.dtype.IsFloat() || p.dtype == dtype {
			continue
		}
		if p.value == nil {
			p.dtype = dtype
			continue
		}
		c.NoGrad(func() {
			t := c.Keep(c.To(p.value, dtype))
			p.dtype = dtype // not before there is memory for it
			p.SetTensor(t)
		})
	}
}

// Free frees every parameter and buffer of m.
func Free(m Module) {
	for _, p := range State(m) {
		p.Param.Free()
	}
}

// ZeroGrads drops the gradients of m's parameters and frees their memory. Replicas
// keep theirs.
func ZeroGrads(m Module) {
	for _, p := range Params(m) {
		if value := p.Owner().value; value != nil {
			value.SetGradOf(nil)
		}
	}
}
