package nn

import "penstock.example/torch"

// Flatten makes one dimension of several neighbours. The result is a view where memory allows.
type Flatten struct {
	Base
	start, end int64
}

// NewFlatten makes a Flatten of the dimensions from start to end, inclusive; negative ones count
// from the end. NewFlatten(1, -1) is PyTorch's default: [N, ...] to [N, features].
func NewFlatten(start, end int64) *Flatten { return &Flatten{start: start, end: end} }

// Forward is aten::flatten.
func (l *Flatten) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	return c.Flatten(x, l.start, l.end)
}

// Identity returns its input itself.
type Identity struct{ Base }

// NewIdentity makes an Identity.
func NewIdentity() *Identity { return &Identity{} }

// Forward returns x.
func (l *Identity) Forward(_ *Ctx, x *torch.Tensor) *torch.Tensor { return x }
