// Package gradnorm clips by the norm of all gradients, as torch.nn.utils.clip_grad_norm_ does.
// Every stage of a pipe calls Squared and Scale for its own parameters:
//
//	Squared ─┐
//	Squared ─┼─► Global ─► ClipFactor ─┬─► Scale
//	Squared ─┘                         └─► Scale ...
package gradnorm

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"penstock.example/nn"
	"penstock.example/torch"
)

// ErrNotFinite is exported as optim.ErrNotFinite.
var ErrNotFinite = errors.New("the gradients' norm is not finite")

// SquaredNorm is the sum of the squares of one parameter's gradient.
type SquaredNorm struct {
	Name    string // the parameter's full name
	Squared float64
}

// blockSize is the number of elements that are squared and summed at a time. On a CPU libtorch
// reduces fewer than 32,768 (at::internal::GRAIN_SIZE) on one thread, so that the sum does not
// depend on the number of threads, and the temporary of 128 KiB stays in the cache. A GPU is faster
// with large blocks; there the temporary is 32 MiB.
func blockSize(d torch.Device) int64 {
	if d.Kind == torch.KindCUDA {
		return 1 << 22
	}
	return 1 << 14
}

// Squared lists the squared norms of the gradients of params. Parameters without a gradient are
// left out. The sums are float64, in an order that depends only on the shape and the kind of
// device. The host reads them once, at the end.
func Squared(c *torch.Ctx, params []nn.NamedParam) []SquaredNorm {
	var out []SquaredNorm
	mark := c.Mark()
	c.NoGrad(func() {
		sums := c.Zeros(torch.Float64, int64(len(params)))
		each := c.Mark()
		for _, p := range params {
			if g := c.GradOf(p.Tensor()); g != nil {
				addSquares(c, c.Narrow(sums, 0, int64(len(out)), 1), g)
				out = append(out, SquaredNorm{Name: p.Name})
			}
			c.Release(each)
		}
		values := torch.Values[float64](sums)
		for i := range out {
			out[i].Squared = values[i]
		}
	})
	c.Release(mark)
	return out
}

// PeakBytes returns the peak of Squared on a device for contiguous gradients, without the workspace
// of libtorch's sum on a GPU.
func PeakBytes(d torch.Device, params []nn.NamedParam) int64 {
	most := int64(0)
	for _, p := range params {
		most = max(most, min(blockSize(d), p.Numel())+1) // a block and its sum
	}
	return torch.Float64.Size() * (most + int64(len(params)))
}

// addSquares adds the squares of g's elements to sum.
func addSquares(c *torch.Ctx, sum, g *torch.Tensor) {
	flat, block := c.Reshape(g, -1), blockSize(c.Device())
	mark := c.Mark()
	for start, n := int64(0), flat.Numel(); start < n; start += block {
		part := c.To(c.Narrow(flat, 0, start, min(block, n-start)), torch.Float64)
		c.Add_(sum, c.Sum(c.Op("aten::mul_.Tensor", part, part)), 1)
		c.Release(mark)
	}
}

// Global returns the 2-norm of all gradients. It adds in the order of the names, so that the bits
// do not depend on how the parameters were divided.
func Global(parts ...[]SquaredNorm) float64 {
	all := slices.Concat(parts...)
	slices.SortFunc(all, func(a, b SquaredNorm) int { return cmp.Compare(a.Name, b.Name) })
	var sum float64
	for _, n := range all {
		sum += n.Squared
	}
	return math.Sqrt(sum)
}

// ClipFactor returns the factor that scales gradients of a norm down to at most maxNorm: PyTorch's
// min(1, maxNorm / (norm + 1e-6)). An infinite or NaN norm gives ErrNotFinite; PyTorch would make
// the weights NaN.
func ClipFactor(norm, maxNorm float64) (float64, error) {
	if !(maxNorm > 0) {
		return 0, fmt.Errorf("optim: a norm cannot be clipped to %v; want more than 0", maxNorm)
	}
	if math.IsNaN(norm) || math.IsInf(norm, 0) {
		return 0, fmt.Errorf("optim: %w: %v", ErrNotFinite, norm)
	}
	return min(1, maxNorm/(norm+1e-6)), nil
}

// Scale multiplies the gradients of params by factor in place.
func Scale(c *torch.Ctx, params []nn.NamedParam, factor float64) {
	if factor == 1 {
		return
	}
	c.NoGrad(func() {
		for _, p := range params {
			if g := c.GradOf(p.Tensor()); g != nil {
				c.MulScalar_(g, factor)
				g.Free()
			}
		}
	})
}
