package models

import (
	"penstock/nn"
	"penstock/torch"
)

// stash hands its input on as a skip connection, and gives it as its output.
type stash struct {
	nn.Base
	skip string
}

func newStash(skip string) *stash {
	s := &stash{skip: skip}
	s.Stashes(skip)
	return s
}

// Forward returns x.
func (s *stash) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	c.Stash(s.skip, x)
	return x
}
