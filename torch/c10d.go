package torch

import "penstock.example/internal/shim"

// InMemoryOrder returns a view of one dimension of a dense tensor, in the order of addresses. A
// tensor is dense if its elements fill a range of memory, whatever the order of its dimensions.
func (c *Ctx) InMemoryOrder(t *Tensor) *Tensor {
	h, err := shim.Memory(t.given("in_memory_order"))
	c.check("in_memory_order", err, t)
	return c.own(h)
}
