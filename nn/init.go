package nn

import (
	"math"

	"penstock.example/torch"
)

// Init fills a new tensor, drawing from the context's seed.
type Init func(c *torch.Ctx, t *torch.Tensor)

// Zeros and Ones are constant initialisers.
var (
	Zeros Init = func(c *torch.Ctx, t *torch.Tensor) { c.Zero_(t) }
	Ones  Init = func(c *torch.Ctx, t *torch.Tensor) { c.Fill_(t, 1) }
)

// Normal draws from a normal distribution around zero.
func Normal(std float64) Init {
	return func(c *torch.Ctx, t *torch.Tensor) { c.Normal_(t, 0, std) }
}

// Uniform draws from [-bound, bound).
func Uniform(bound float64) Init {
	return func(c *torch.Ctx, t *torch.Tensor) { c.Uniform_(t, -bound, bound) }
}

// FanIn is PyTorch's default for the weights and biases of Linear and Conv2d, uniform within
// 1/sqrt(fanIn). For weights it equals kaiming_uniform_(a=sqrt(5)).
func FanIn(fanIn int64) Init { return Uniform(1 / math.Sqrt(float64(max(fanIn, 1)))) }
