package nn

import "penstock.example/torch"

// LeakyReLU is x where x is positive and slope x elsewhere (Maas et al. 2013).
type LeakyReLU struct {
	Base
	slope   float64
	inPlace bool
}

// LeakyReLUConfig configures a LeakyReLU. The zero value has PyTorch's slope and returns a new
// tensor.
type LeakyReLUConfig struct {
	Slope   float64 // below zero; 0 is 0.01
	InPlace bool    // overwrite the input and return it; see NewReLUInPlace for what may come before
}

// NewLeakyReLU makes a LeakyReLU. In place, the slope must be positive: the gradient is told from
// the result's sign.
func NewLeakyReLU(o LeakyReLUConfig) *LeakyReLU {
	if o.Slope == 0 {
		o.Slope = 0.01
	}
	require(o.Slope > 0 || !o.InPlace, "LeakyReLU: Slope is %v; in place it must be positive, or 0 for 0.01", o.Slope)
	return &LeakyReLU{slope: o.Slope, inPlace: o.InPlace}
}

// Forward is aten::leaky_relu or aten::leaky_relu_.
func (l *LeakyReLU) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	if !l.inPlace {
		return c.LeakyReLU(x, l.slope)
	}
	return c.LeakyReLU_(x, l.slope)
}

// OverwritesInput says that the layer is one that works in place.
func (l *LeakyReLU) OverwritesInput() bool { return l.inPlace }
