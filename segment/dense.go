package segment

import (
	"slices"

	"penstock.example/torch"
)

// What leaves a segment for other layers of the model is dense (torch.Dense): the output, the skips, and
// the gradients of the input. An operation that makes something else, such as a part of a wider tensor,
// makes a copy of it, whose bytes count there. Sending then takes no memory, also to another process,
// and what waits to be received holds no other memory.

// dense replaces the tensors of a list that are not dense by copies, with a graph where gradients are
// recorded. A tensor that stands there twice stays one. The copies belong to the context.
func dense(c *torch.Ctx, list []*torch.Tensor) []*torch.Tensor {
	if !slices.ContainsFunc(list, func(t *torch.Tensor) bool { return !isDense(c, t) }) {
		return list
	}
	out := slices.Clone(list)
	for i, t := range list {
		if k := slices.Index(list[:i], t); k >= 0 {
			out[i] = out[k]
		} else if !isDense(c, t) {
			out[i] = c.Clone(t)
		}
	}
	return out
}

// packed is a kept tensor if it is dense, and else a copy of it, which is kept in its place.
func packed(c *torch.Ctx, t *torch.Tensor) *torch.Tensor {
	if t == nil || isDense(c, t) {
		return t
	}
	defer t.Free()
	return c.Keep(c.Clone(t))
}

func isDense(c *torch.Ctx, t *torch.Tensor) bool {
	return t.IsPacked() || torch.Dense(t.Shape(), c.Strides(t))
}
