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

// FanIn is PyTorch's default for the weights and biases of Linear and Conv2d: uniform within
// 1/sqrt(fanIn). For weights it is what kaiming_uniform_(a=sqrt(5)) comes to.
func FanIn(fanIn int64) Init { return Uniform(1 / math.Sqrt(float64(max(fanIn, 1)))) }

// XavierUniform keeps the variance of what goes forward and back about equal (Glorot and Bengio 2010,
// "Understanding the difficulty of training deep feedforward neural networks", eq. 16): uniform
// within sqrt(6 / (fanIn + fanOut)).
func XavierUniform(fanIn, fanOut int64) Init { return Uniform(math.Sqrt(6 / float64(fanIn+fanOut))) }

// KaimingNormalFanOut is He's initialisation for ReLU networks (He et al. 2015, eq. 14, counted
// over outputs): normal with std sqrt(2/fanOut). ResNets use it.
func KaimingNormalFanOut(fanOut int64) Init { return Normal(math.Sqrt(2 / float64(fanOut))) }
