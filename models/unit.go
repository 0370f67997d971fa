package models

import (
	"penstock.example/nn"
	"penstock.example/torch"
)

// unit is a chain of layers that a partition takes as one layer, where a Sequential would be
// flattened.
type unit struct {
	nn.Base
	layers []nn.Layer
}

func (u *unit) add(name string, l nn.Layer) *unit {
	u.Child(name, l)
	u.layers = append(u.layers, l)
	return u
}

// Forward runs the layers in order.
func (u *unit) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Run(x, u.layers...) }
