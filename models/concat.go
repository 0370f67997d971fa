package models

import (
	"penstock.example/nn"
	"penstock.example/torch"
)

const unetSkip = "skip"

// concat appends a skip connection's channels: [N, a, H, W] and a skip of [N, b, H', W'] to [N, a +
// b, H', W']. An input that is smaller, because an odd size was halved, is filled up with zeros at
// the bottom and on the right.
type concat struct{ nn.Base }

func newConcat() *concat {
	l := &concat{}
	l.Pops(unetSkip)
	return l
}

// Forward is aten::cat, after aten::constant_pad_nd where sizes differ.
func (l *concat) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	mark := c.Mark()
	skip := c.Pop(unetSkip)
	if bottom, right := skip.Size(2)-x.Size(2), skip.Size(3)-x.Size(3); bottom != 0 || right != 0 {
		x = c.Pad(x, []int64{0, right, 0, bottom}, 0)
	}
	y := c.Cat([]*torch.Tensor{x, skip}, 1)
	c.Release(mark, y)
	return y
}
