package optim

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"penstock.example/internal/arg"
	"penstock.example/nn"
	"penstock.example/torch"
)

// Clipping by the norm of all gradients together, as torch.nn.utils.clip_grad_norm_, in parts so
// that a pipe can do it: every stage squares its own, the whole is added up in one place, every
// stage scales its own.
//
//	SquaredNorms ─┐
//	SquaredNorms ─┼─► GlobalNorm ─► ClipFactor ─┬─► Scale
//	SquaredNorms ─┘                             └─► Scale ...

// ErrNotFinite is the error of clipping gradients with infinite or NaN elements. No factor mends
// them. Nothing was scaled; the caller may skip the step or stop.
var ErrNotFinite = errors.New("the gradients' norm is not finite")

// NamedNorm is the sum of the squares of one parameter's gradient.
type NamedNorm struct {
	Name    string // the parameter's full name
	Squared float64
}

// block is the number of elements that are squared and summed at a time. Below 32,768
// (at::internal::GRAIN_SIZE) libtorch reduces on one thread, so that the sum does not depend on the
// threads of the stage; and the temporary, 128 KiB, stays in the cache.
const block = 1 << 14

// SquaredNorms lists, for each of params that has a gradient, the sum of its squares, computed in
// float64 in an order that depends on the shape alone.
func SquaredNorms(c *torch.Ctx, params []nn.NamedParam) []NamedNorm {
	arg.Must(c, "optim: SquaredNorms: the torch.Ctx", "one of torch.NewCtx")
	var out []NamedNorm
	c.NoGrad(func() {
		for _, p := range params {
			mark := c.Mark()
			if g := c.GradOf(p.Tensor()); g != nil {
				out = append(out, NamedNorm{p.Name, squared(c, g)})
			}
			c.Release(mark)
		}
	})
	return out
}

// NormNeed is the bytes that SquaredNorms of params allocates at most, and frees again, where
// gradients lie in the order of their elements.
func NormNeed(params []nn.NamedParam) (bytes int64) {
	const number = 8 // float64
	for _, p := range params {
		bytes = max(bytes, number*(min(block, p.Numel())+2)) // the elements, their sum, and the sum so far
	}
	return bytes
}

func squared(c *torch.Ctx, g *torch.Tensor) float64 {
	flat := c.Reshape(g, -1)
	total := c.Zeros(torch.Float64)
	mark := c.Mark()
	for start, n := int64(0), flat.Numel(); start < n; start += block {
		part := c.To(c.Narrow(flat, 0, start, min(block, n-start)), torch.Float64)
		c.Add_(total, c.Sum(c.Mul_(part, part)), 1)
		c.Release(mark)
	}
	return torch.Item[float64](total)
}

// GlobalNorm is the 2-norm of all gradients together. It adds in the order of the names, so that it
// is the same to the bit however the parameters were divided. Infinite or NaN gradients make it so.
func GlobalNorm(parts ...[]NamedNorm) float64 {
	all := slices.Concat(parts...)
	slices.SortFunc(all, func(a, b NamedNorm) int { return strings.Compare(a.Name, b.Name) })
	var sum float64
	for _, n := range all {
		sum += n.Squared
	}
	return math.Sqrt(sum)
}

// ClipFactor is the factor that scales gradients of a norm down to at most maxNorm: PyTorch's
// min(1, maxNorm / (norm + 1e-6)). A norm that is infinite or NaN gives ErrNotFinite, where PyTorch
// would go on and make the weights NaN.
func ClipFactor(norm, maxNorm float64) (float64, error) {
	if !(maxNorm > 0) {
		return 0, fmt.Errorf("optim: a norm cannot be clipped to %v: want more than 0", maxNorm)
	}
	if math.IsNaN(norm) || math.IsInf(norm, 0) {
		return 0, fmt.Errorf("optim: %w: %v", ErrNotFinite, norm)
	}
	return min(1, maxNorm/(norm+1e-6)), nil
}

// Scale multiplies the gradients of params in place. A factor of 1 touches nothing.
func Scale(c *torch.Ctx, params []nn.NamedParam, factor float64) {
	arg.Must(c, "optim: Scale: the torch.Ctx", "one of torch.NewCtx")
	if factor == 1 {
		return
	}
	c.NoGrad(func() {
		for _, p := range params {
			mark := c.Mark()
			if g := c.GradOf(p.Tensor()); g != nil {
				c.MulScalar_(g, factor)
			}
			c.Release(mark)
		}
	})
}

// Clip clips the gradients of a model in one piece and returns the norm before.
func Clip(c *torch.Ctx, params []nn.NamedParam, maxNorm float64) (norm float64, err error) {
	if err := arg.Given(c, "optim: Clip: the torch.Ctx", "one of torch.NewCtx"); err != nil {
		return 0, err
	}
	norm = GlobalNorm(SquaredNorms(c, params))
	factor, err := ClipFactor(norm, maxNorm)
	if err != nil {
		return norm, err
	}
	Scale(c, params, factor)
	return norm, nil
}
