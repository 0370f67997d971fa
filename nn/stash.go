package nn

import "penstock.example/torch"

// Stash stashes its input as a skip connection and returns it.
type Stash struct {
	Base
	skip string
}

// NewStash makes a Stash under the skip's name.
func NewStash(skip string) *Stash {
	s := &Stash{skip: skip}
	s.Stashes(skip)
	return s
}

// Forward returns x.
func (s *Stash) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	c.Stash(s.skip, x)
	return x
}
