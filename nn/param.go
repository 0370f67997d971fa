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
	ties      int           // number of handles on it made by Base.Share
	owner     *Param        // the parameter behind a handle; nil if this is no handle
	replica   *torch.Tensor // see Replicate; a handle has its own
}

// Owner returns the parameter behind a handle made by Base.Share. If p is no handle, it returns p.
func (p *Param) Owner() *Param {
	if p.owner != nil {
		return p.owner
	}
	return p
}

// Shared reports whether more than one module uses the parameter.
func (p *Param) Shared() bool { return p.Owner().ties > 0 }

// Replicate sets a replica of the value, a leaf with its own gradient that Tensor returns from now
// on. Nil removes it. The caller owns the replica, keeps it equal to the value and adds its
// gradient to the value's. A pipe uses replicas to put a parameter on two stages, package profile
// to measure a layer on another device.
func (p *Param) Replicate(t *torch.Tensor) {
	if t != nil {
		p.mustHold(t)
	}
	p.replica = t
}

func (p *Param) Replica() *torch.Tensor { return p.replica }

// Shape is the declared shape. The caller must not change it.
func (p *Param) Shape() []int64 { return p.shape }

func (p *Param) Numel() int64 {
	n := int64(1)
	for _, s := range p.shape {
		n *= s
	}
	return n
}

func (p *Param) Bytes() int64       { return p.Numel() * p.DType().Size() }
func (p *Param) DType() torch.DType { return p.Owner().dtype }

// IsBuffer reports whether the parameter is saved but never trained, Trainable whether it is
// trained.
func (p *Param) IsBuffer() bool  { return p.buffer }
func (p *Param) Trainable() bool { return p.Owner().trainable }

// SetTrainable makes the parameter trainable, or a constant without a gradient. A buffer is never
// trainable. Call it between runs.
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

// SetInit replaces the initialiser. Call it before the parameter is materialised.
func (p *Param) SetInit(init Init) { p.Owner().init = init }

// Tensor returns the replica, or without a replica the value, owned by the model. It returns nil
// for a nil Param, so that optional parameters can be passed straight to operators.
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

// SetTensor replaces the value by t, which the model owns from now on. The old value is freed with
// its gradient.
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

// Materialise allocates the params that do not exist yet, on the context's device, and initialises
// them. Each is drawn from a seed that is derived from its full name, so its values do not depend
// on order, partition or device.
func Materialise(c *torch.Ctx, params []NamedParam, seed uint64) {
	defer c.ResumeDraws(c.Draws())
	c.NoGrad(func() {
		for _, n := range params {
			p := n.Owner()
			if p.Exists() {
				continue
			}
			c.SetSeed(torch.Mix(seed, extendHash(fnvOffset, n.Name)))
			mark := c.Mark()
			t := c.Empty(p.dtype, p.shape...)
			p.init(c, t)
			c.Keep(t)
			c.Release(mark)
			p.SetTensor(t)
		}
	})
}

// Convert changes the element type of the floating-point params. Values that exist are converted on
// the context's device, and their gradients are dropped.
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
			p.dtype = dtype // after Keep, which may run out of memory
			p.SetTensor(t)
		})
	}
}

func Free(m Module) {
	for _, p := range State(m) {
		p.Param.Free()
	}
}

// ZeroGrads frees the gradients of m's parameters, but not those of replicas.
func ZeroGrads(m Module) {
	for _, p := range Params(m) {
		if value := p.Owner().value; value != nil {
			value.SetGradOf(nil)
		}
	}
}
