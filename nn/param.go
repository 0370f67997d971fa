package nn

import (
	"fmt"
	"hash/fnv"

	"penstock/torch"
)

// Param is a parameter or a buffer: declared with a shape and an initialiser, allocated by Materialise.
type Param struct {
	shape     []int64
	dtype     torch.DType
	init      Init
	trainable bool
	buffer    bool
	value     *torch.Tensor
}

// Shape is the declared shape. The caller must not change it.
func (p *Param) Shape() []int64 { return p.shape }

// DType is the element type.
func (p *Param) DType() torch.DType { return p.dtype }

// Numel is the number of elements.
func (p *Param) Numel() int64 {
	n := int64(1)
	for _, s := range p.shape {
		n *= s
	}
	return n
}

// IsBuffer says that the parameter is saved but never trained.
func (p *Param) IsBuffer() bool { return p.buffer }

// Trainable says that the parameter has a gradient.
func (p *Param) Trainable() bool { return p.trainable }

// Freeze excludes the parameter from training. Call it before the parameter is materialised.
func (p *Param) Freeze() { p.trainable = false }

// SetInit replaces the initialiser: how a network gives its layers other starting values than their defaults. Call it before the parameter is materialised.
func (p *Param) SetInit(init Init) { p.init = init }

// Tensor is the value, owned by the model; nil for a nil Param, so that optional parameters pass straight to operators.
func (p *Param) Tensor() *torch.Tensor {
	if p == nil {
		return nil
	}
	if p.value == nil {
		panic("nn: a parameter is used before it exists; call nn.Materialise or pipe.New first")
	}
	return p.value
}

// Exists says whether the parameter is materialised.
func (p *Param) Exists() bool { return p.value != nil }

// SetTensor puts t in place of the value; the model owns t from now on and the old value is freed with its gradient.
func (p *Param) SetTensor(t *torch.Tensor) {
	if got := t.Shape(); fmt.Sprint(got) != fmt.Sprint(p.shape) || t.DType() != p.dtype {
		panic(fmt.Sprintf("nn: a parameter of %v%v cannot hold %v", p.dtype, p.shape, t))
	}
	p.Free()
	p.value = t.SetRequiresGrad(p.trainable)
}

// Free frees the value and its gradient. The parameter can be materialised again.
func (p *Param) Free() {
	if p.value == nil {
		return
	}
	p.value.SetGradOf(nil)
	p.value.Free()
	p.value = nil
}

// Materialise allocates those of params that do not exist yet, on the context's device, and initialises them. Each is drawn from a seed that is derived from
// its full name, so its values do not depend on order, partition or device.
func Materialise(c *torch.Ctx, params []NamedParam, seed uint64) {
	keepSeed, keepDraws := c.Draws()
	defer c.ResumeDraws(keepSeed, keepDraws)
	c.NoGrad(func() {
		for _, p := range params {
			if p.Exists() {
				continue
			}
			c.SetSeed(torch.Mix(seed, nameHash(p.Name)))
			mark := c.Mark()
			t := c.Empty(p.dtype, p.shape...)
			p.init(c, t)
			c.Keep(t)
			c.Release(mark)
			p.SetTensor(t)
		}
	})
}

// Free frees every parameter and buffer of m.
func Free(m Module) {
	for _, p := range State(m) {
		p.Param.Free()
	}
}

// ZeroGrads drops the gradients of m's parameters and frees their memory.
func ZeroGrads(m Module) {
	for _, p := range Params(m) {
		if p.Exists() {
			p.Tensor().SetGradOf(nil)
		}
	}
}

func nameHash(name string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	return h.Sum64()
}
